"""A timer of the event loop that is finer than the loop's own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)


class _Timer(ctypes.Structure):
    """struct itimerspec, without an interval: it fires once."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class Alarm:
    """Calls `callback` on the running event loop after a time, late by tens of microseconds.

    `loop.call_later` counts in whole milliseconds (and uvloop rounds shorter times down to none, which
    would burn a core). This is a timerfd that the loop watches; it costs nothing while it waits. Only
    Linux has it; Python's own binding is newer than the oldest Python that is supported.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"no timer for a paced NIC: {os.strerror(error)}")
        self._timer = _Timer()
        self._reference = ctypes.byref(self._timer)
        self._loop.add_reader(self._fd, self._fire)

    def set(self, delay_s: float) -> None:
        """Fire once after `delay_s`, and not when it was to fire before."""
        nanoseconds = max(int(delay_s * 1e9), 1)
        self._timer.s, self._timer.ns = divmod(nanoseconds, 1_000_000_000)
        _libc.timerfd_settime(self._fd, 0, self._reference, None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # Only where the loop, which holds on to it while it watches, is gone too.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # It was set anew in the meantime.
            return
        self._callback()
