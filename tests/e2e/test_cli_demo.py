"""`dualpath demo` as a user has it: against a cluster that runs, and with one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cluster import LocalCluster, until

from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord, load_record
from dualpath.model.prepare import prepare_model
from dualpath.settings import load_settings

COMMAND = [sys.executable, "-m", "dualpath.cli.main", "demo"]


def environment(**more: str) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    return {**clean, "COLUMNS": "100", **more}


def test_a_running_cluster_is_shown_with_its_nics_and_that_both_sides_read(
    cluster: LocalCluster,
) -> None:
    ended = subprocess.run(
        [*COMMAND, "--url", cluster.base_url],
        env=environment(DUALPATH_HOME=str(cluster.home)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "12 of 12" in ended.stdout
    for text in ("prefill-0.snic", "decode-0.snic", "both (split)"):
        assert text in ended.stdout
    cluster.until_idle()


def test_without_a_home_the_answers_tell_what_was_read(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*COMMAND, "--url", cluster.base_url],
        env=environment(DUALPATH_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Cached KV read so far" in ended.stdout


@pytest.mark.parametrize(
    "end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_its_own_cluster_ends_with_it_and_leaves_nothing_but_the_users_model(
    tmp_path: Path, end: signal.Signals
) -> None:
    own = load_settings(model="synthetic", home=tmp_path / "own")
    model = prepare_model(own, print)
    records: list[ClusterRecord] = []
    served: set[Path] = set()

    def runs() -> bool:
        for home in tmp_path.glob("dualpath-demo-*/home"):
            record = load_record(Home(home))
            if record is not None and record.state == "ready":
                records.append(record)
                served.update(path.resolve() for path in Home(home).models.iterdir())
        return bool(records)

    with subprocess.Popen(
        [*COMMAND, "--model", "synthetic"],
        env=environment(TMPDIR=str(tmp_path), DUALPATH_HOME=str(own.home)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        until(runs, "its cluster is ready", within_s=180)
        process.send_signal(end)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130), errors
    assert b"Traceback" not in errors
    assert not any(alive(service.process) for service in records[0].services)
    assert not list(tmp_path.glob("dualpath-demo-*"))
    assert model in served
    assert list(model.iterdir())


def test_a_cluster_that_does_not_start_tells_why(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "--model", "synthetic"],
        env=environment(TMPDIR=str(tmp_path), DUALPATH_DECODE_BUFFER="64KiB"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "the cluster did not start" in ended.stderr
    assert "raise decode_buffer" in ended.stderr
    assert not list(tmp_path.glob("dualpath-demo-*"))
