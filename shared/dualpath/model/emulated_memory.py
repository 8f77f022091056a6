"""Host memory that stands for a device's: its pages are touched once, and then belong to it, as HBM does."""

from __future__ import annotations

import numpy as np

from dualpath.memory.device import DeviceBuffer

_SLACK = 2
"""A buffer is used again for a smaller one of at least 1/2 of its size."""


class EmulatedMemory:
    """Gives out buffers, and keeps up to `kept_bytes` of what came back for the next ones: fresh pages, which the
    kernel has to clear one by one, cost more than copying KV into them. The caller accounts for what is used."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._free: list[memoryview] = []
        """The one that came back last is the last."""

    def allocate(self, nbytes: int) -> NumpyBuffer:
        fitting = [view for view in self._free if nbytes <= len(view) <= _SLACK * nbytes]
        if fitting:
            memory = min(reversed(fitting), key=len)
            self._free = [view for view in self._free if view is not memory]
        else:
            memory = np.empty(nbytes, np.uint8).data
        return NumpyBuffer(self, memory, nbytes)

    def give_back(self, memory: memoryview) -> None:
        self._free.append(memory)
        held = sum(map(len, self._free))
        while held > self._kept_bytes:
            held -= len(self._free.pop(0))


class NumpyBuffer(DeviceBuffer):
    """A piece of emulated device memory."""

    def __init__(self, owner: EmulatedMemory, memory: memoryview, nbytes: int) -> None:
        self.nbytes = nbytes
        self._owner = owner
        self._memory = memory
        self._wire = memory[:nbytes]

    @property
    def wire(self) -> memoryview:
        return self._wire

    def to_device(self, start: int, stop: int) -> None:
        """Nothing to do: `wire` is the memory."""

    def to_host(self, start: int, stop: int) -> None:
        """Nothing to do: `wire` is the memory."""

    def free(self) -> None:
        memory, self._memory = self._memory, memoryview(b"")
        self.nbytes, self._wire = 0, memoryview(b"")
        if memory:
            self._owner.give_back(memory)
