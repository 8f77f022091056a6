from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualpath.cli import scale
from dualpath.cluster.home import Home
from dualpath.cluster.processes import identify
from dualpath.cluster.record import ClusterRecord, ServiceRecord, save_record


@pytest.mark.parametrize(("status", "said"), [(0, "had to leave again"), (7, "did not start")])
def test_a_fresh_node_that_is_gone_is_told_by_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    """An order of another command's may let it go while this one waits."""
    home, this = Home(tmp_path), identify(os.getpid())
    home.create()
    assert this is not None
    nodes = (
        ServiceRecord("prefill-0", "prefill", this),
        ServiceRecord("prefill-1", "prefill", this, exit_status=status),
    )
    save_record(home, ClusterRecord(this, "ready", "m", "dualpath", "", 1.0, nodes))
    assert scale._wait(home, {"prefill": 2}, {"prefill-0": True}, 5.0) == 1
    assert f"prefill-1 {said}" in capsys.readouterr().err
