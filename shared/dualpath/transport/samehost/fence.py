"""A barrier on every processor of the host, for who writes rarely what others read often."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
"""The system call's number, which glibc has no function for."""
_QUERY, _GLOBAL = 0, 1


def fence() -> None:
    """What this thread wrote before is seen by all threads of the host that read later anything written after.

    Takes milliseconds. Raises OSError where there is no such barrier: ask `available` before.
    """
    if _call(_GLOBAL) < 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses membarrier")


@cache
def available() -> bool:
    """The kernel has the barrier, and lets this process use it."""
    supported = _call(_QUERY)
    return supported > 0 and bool(supported & _GLOBAL)


def _call(command: int) -> int:
    number = _MEMBARRIER.get(platform.machine())
    if number is None:
        return -1
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, command, 0, 0)
    return result
