"""`python -m dualpath.telemetry.leash PARENT_PID PROGRAM ARGUMENT…`: become PROGRAM, and die with the parent.

The kernel kills the program when the process that started it ends, however that ends, so that one which is
killed leaves no process behind. The bond survives `exec`, so it holds for any program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """`command` with the leash before it; its program must be a path. To be started by this very process,
    from a thread that lives as long as the command may."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def _become(parent: int, command: Sequence[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have ended before the bond was made; then nobody would end this process.
    if os.getppid() != parent:
        raise SystemExit("the process that started this one has already ended")
    os.execv(command[0], list(command))


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
