"""A process ends by its exit code, whatever native threads do with the interpreter afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, types
from dualpath.cli.leaving import NATIVE, leave

class Late:
    # What a native thread would meet: an interpreter that is being taken down.
    def __del__(self, write=sys.stderr.write):
        write("taken down")

late = Late()
if {native}:
    sys.modules[NATIVE] = types.ModuleType(NATIVE)
atexit.register(print, "at exit")
print("said", end=" ")
leave(SystemExit({code}))
"""


def run(code: object, *, native: bool) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(code=code, native=native)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("code", "status"), [(0, 0), (None, 0), (3, 3), (True, 1)])
def test_with_native_threads_the_interpreter_is_left_standing(code: object, status: int) -> None:
    ended = run(code, native=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "said at exit\n", "")


def test_without_them_it_ends_as_ever() -> None:
    ended = run(3, native=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said at exit\n", "taken down")
