"""Which process a pid means: a pid alone may have been given to another process since."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import msgspec


class ProcessId(msgspec.Struct, frozen=True):
    """One life of a pid: `start_ticks` is field 22 of /proc/PID/stat, `boot` the kernel's boot id."""

    pid: int
    start_ticks: int
    boot: str


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything, parentheses too.
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The process that has `pid` now; None where none has, or only a zombie that awaits its parent."""
    found = _state_and_start(pid)
    if found is None or found[0] in "ZX":
        return None
    return ProcessId(pid, found[1], _boot())


def alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it has ended. Never reaches a process that took its pid."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle holds whoever has the pid now, for as long as it is open: check after opening.
        if not alive(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True
