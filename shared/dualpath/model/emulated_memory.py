"""Host memory that stands for a device's: its pages are touched once, and then belong to it, as HBM does."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from dualpath.memory.device import DeviceBuffer
from dualpath.memory.ranges import RangeAllocator
from dualpath.memory.shared import SharedMemory

_MAP_NORESERVE = 0x4000
"""Of linux/mman.h, on x86-64 and arm64; not in the standard library of Python 3.11."""


class EmulatedMemory:
    """Buffers out of one piece of `nbytes`. Pages stay, as fresh ones, which the kernel has to clear one by one, cost
    more than copying KV into them; first fit uses the same ones again.

    The caller accounts for what is used. What finds no range, by rounding to pages or as free ones lie apart, gets
    memory of its own.
    """

    def __init__(self, nbytes: int, *, shared: bool = False) -> None:
        self.shared = SharedMemory("device", nbytes) if shared else None
        """What other processes of this host may read, if `shared`; else pages are huge where the kernel has them."""
        self._memory = self.shared.view if self.shared else _huge(nbytes)
        self._ranges = RangeAllocator(nbytes, nbytes)

    @property
    def used_bytes(self) -> int:
        """Of the piece, by buffers that were not freed."""
        return self._ranges.used

    def allocate(self, nbytes: int) -> NumpyBuffer:
        try:
            start = self._ranges.allocate(nbytes)
        except ValueError:
            start = None
        if start is None:
            return NumpyBuffer(np.empty(nbytes, np.uint8).data, None, None)
        return NumpyBuffer(self._memory[start : start + nbytes], self._ranges, start)


def _huge(nbytes: int) -> memoryview:
    """More than the machine has is fine, as long as it is not used."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, nbytes, flags=flags)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class NumpyBuffer(DeviceBuffer):
    """A piece of emulated device memory."""

    def __init__(self, wire: memoryview, ranges: RangeAllocator | None, start: int | None) -> None:
        self.nbytes = len(wire)
        self._wire = wire
        self._ranges = ranges
        self._start = start

    @property
    def wire(self) -> memoryview:
        return self._wire

    def to_device(self, start: int, stop: int) -> None:
        """Nothing to do: `wire` is the memory."""

    def to_host(self, start: int, stop: int) -> None:
        """Nothing to do: `wire` is the memory."""

    def free(self) -> None:
        self.nbytes, self._wire = 0, memoryview(b"")
        if self._ranges is not None and self._start is not None:
            self._ranges.free(self._start)
        self._ranges = self._start = None
