"""`--detach`: the supervisor goes on in the background once the cluster is ready."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def run_detached(log_file: Path, run: Callable[[Callable[[], None]], int]) -> int:
    """Fork; run `run(on_ready)` in the child, a session of its own, and return in the parent what it came to.

    Until it calls `on_ready` the child keeps the terminal; from then on it writes to `log_file`, and the
    parent returns 0. If it ends before, the parent returns its exit code. Ctrl-C at the parent stops the
    child. To be called before threads or an event loop exist.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready_read)
        os.setsid()
        os._exit(_background(log_file, run, ready_write))
    os.close(ready_write)
    return _await_ready(child, ready_read)


def _background(log_file: Path, run: Callable[[Callable[[], None]], int], ready_write: int) -> int:
    def on_ready() -> None:
        sys.stdout.flush()
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.close(null)
        os.write(ready_write, b"+")
        os.close(ready_write)

    try:
        return run(on_ready)
    finally:
        # `os._exit` follows: nothing else would write out what is buffered.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()


def _await_ready(child: int, ready_read: int) -> int:
    with os.fdopen(ready_read, "rb") as pipe:
        while True:
            try:
                if pipe.read(1):
                    return 0
                _, status = os.waitpid(child, 0)
                return os.waitstatus_to_exitcode(status)
            except KeyboardInterrupt:
                os.kill(child, signal.SIGTERM)
