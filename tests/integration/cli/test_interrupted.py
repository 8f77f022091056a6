"""What measures ends in order when it is asked to: it says so, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dualpath.cli.words import INTERRUPTED
from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord, load_record


def interrupted(arguments: Sequence[str], begun: str) -> tuple[str, int]:
    """What a command says that gets SIGTERM once it has said `begun`; and its process group."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dualpath.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if begun in line:
                break
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == INTERRUPTED, said
    return said, process.pid


def anybody(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_isolation_stops_its_engines_and_says_that_there_are_no_figures() -> None:
    said, group = interrupted(["bench", "isolation", "--bursts", "1000000"], "bursts a case")
    assert "dualpath: interrupted: a part of the bursts says nothing" in said
    assert "Traceback" not in said
    # What Python's multiprocessing keeps beside it ends a moment after it.
    deadline = time.monotonic() + 30
    while anybody(group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_calibrate_keeps_nothing_of_what_it_has_measured(tmp_path: Path) -> None:
    arguments = ["calibrate", "--model", "synthetic", "--home", str(tmp_path), "--seconds", "60"]
    said, _ = interrupted(arguments, "CNIC ")
    assert "dualpath: interrupted: nothing is kept" in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_takes_its_cluster_with_it(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.joining"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while (record := ready(tmp_path)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
        while left := [s.name for s in record.services if alive(s.process)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        assert not list(tmp_path.iterdir()), "its home is removed"


def ready(directory: Path) -> ClusterRecord | None:
    """Of the cluster whose home is in a directory."""
    records = [load_record(Home(home)) for home in directory.iterdir() if home.is_dir()]
    return next((r for r in records if r is not None and r.state == "ready"), None)
