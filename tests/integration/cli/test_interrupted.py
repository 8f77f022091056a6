"""Commands that measure end in order when they are asked to: they say so, and leave nothing behind."""

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
