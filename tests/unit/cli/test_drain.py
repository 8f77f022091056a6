from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath.cli.drain import drain
from dualpath.cluster import scaling
from dualpath.cluster.home import Home, write_private
from dualpath.cluster.processes import identify
from dualpath.cluster.record import ClusterRecord, ServiceRecord, save_record
from dualpath.settings import Settings, dump_settings


@pytest.fixture
def supervising() -> Iterator[None]:
    """This process takes a supervisor's signal."""
    before = signal.signal(scaling.SIGNAL, signal.SIG_IGN)
    yield
    signal.signal(scaling.SIGNAL, before)


@pytest.mark.usefixtures("supervising")
def test_who_is_left_over_by_another_s_leaving_is_said_to_be_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one was told to go first, and this one is kept."""
    home, this = Home(tmp_path), identify(os.getpid())
    home.create()
    write_private(home.settings_file, dump_settings(Settings(home=tmp_path, drain_s=5.0)))
    with subprocess.Popen(["sleep", "60"]) as kept, subprocess.Popen(["sleep", "0.3"]) as leaves:
        processes = (this, identify(kept.pid), identify(leaves.pid))
        supervisor, *nodes = [process for process in processes if process is not None]
        save_record(
            home,
            ClusterRecord(
                supervisor, "ready", "m", "dualpath", "", 1.0,
                tuple(ServiceRecord(f"prefill-{n}", "prefill", node) for n, node in enumerate(nodes)),
            ),
        )  # fmt: skip
        try:
            assert drain(None, tmp_path, "prefill-0") == 1
        finally:
            kept.kill()
    assert "prefill-0 is the last prefill node" in capsys.readouterr().err
    assert scaling.take_asked(home) == [scaling.Wanted(leave=("prefill-0",))]
