"""The end of a process in which other threads than Python's may still want the interpreter."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

NATIVE = "obstore"
"""Its threads give back what they hold of an answer after the answer is there. One that does so while the interpreter
is being taken down ends the process by SIGABRT, whatever the exit code was to be."""


def leave(exit_: SystemExit) -> NoReturn:
    """End the process as `exit_` says; where `NATIVE` is loaded, with all that is to be done at exit, but with the
    interpreter left standing."""
    code = 0 if exit_.code is None else exit_.code
    if NATIVE not in sys.modules or not isinstance(code, int):
        raise exit_
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    os._exit(code & 0xFF)
