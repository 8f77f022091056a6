"""Memory that blocks pass through between disk and network: bounded, page-aligned, first come first served."""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dualpath.memory.shared import SharedMemory
from dualpath.wire.types import PoolUse

ALIGNMENT = mmap.PAGESIZE


class NoRoom(Exception):
    """No buffer came free in time."""


class RangeAllocator:
    """Ranges of an address space, first fit. Pure.

    At most `budget` bytes are out at a time, or a single range that is larger.
    """

    def __init__(self, size: int, budget: int) -> None:
        self.size = size
        self.budget = budget
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, size)]
        """(start, stop), in order, never touching each other."""
        self._taken: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int | None:
        """The offset of `nbytes` bytes, or None where there is no room now. Raises ValueError where there
        never is."""
        length = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if length > self.size:
            raise ValueError(f"{nbytes} bytes never fit into {self.size}")
        if self.used and self.used + length > self.budget:
            return None
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= length:
                rest = (start + length, stop)
                self._free[index : index + 1] = [rest] if rest[0] < stop else []
                self._taken[start] = length
                self.used += length
                return start
        return None

    def free(self, offset: int) -> None:
        """Give back what `allocate` returned; raises KeyError for anything else."""
        length = self._taken.pop(offset)
        self.used -= length
        start, stop = offset, offset + length
        index = 0
        while index < len(self._free) and self._free[index][1] < start:
            index += 1
        touching = index
        while touching < len(self._free) and self._free[touching][0] <= stop:
            start = min(start, self._free[touching][0])
            stop = max(stop, self._free[touching][1])
            touching += 1
        self._free[index:touching] = [(start, stop)]


class Staging:
    """Buffers to hold while bytes pass through; belongs to one event loop."""

    def __init__(self, name: str, budget: int, largest: int) -> None:
        """`budget` bytes at a time; a buffer may have up to `largest` bytes (and then be the only one)."""
        size = -(-max(budget, largest) // ALIGNMENT) * ALIGNMENT
        self.name = name
        self._ranges = RangeAllocator(size, budget)
        # Pages cost memory only once they were touched, and first fit touches the same ones again and again.
        self.shared = SharedMemory(name, size)
        self.memory = self.shared.view
        """All of it; parts are to be had from `hold`."""
        self._waiters: deque[tuple[int, asyncio.Future[int]]] = deque()

    @asynccontextmanager
    async def hold(self, nbytes: int, *, wait_s: float | None = None) -> AsyncIterator[memoryview]:
        """A buffer for as long as the context is open; whoever leaves it must have seen its readers and
        writers end. Raises NoRoom where none came free within `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                offset = await self._acquire(nbytes)
        except TimeoutError as error:
            raise NoRoom(f"{self.name}: no {nbytes} bytes came free in {wait_s} s") from error
        try:
            yield self.memory[offset : offset + nbytes]
        finally:
            self._ranges.free(offset)
            self._serve()

    async def _acquire(self, nbytes: int) -> int:
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append((nbytes, granted))
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._ranges.free(granted.result())
            else:
                self._waiters = deque(w for w in self._waiters if w[1] is not granted)
            self._serve()
            raise

    def _serve(self) -> None:
        while self._waiters:
            nbytes, granted = self._waiters[0]
            if not granted.done():
                offset = self._ranges.allocate(nbytes)
                if offset is None:
                    return
                granted.set_result(offset)
            self._waiters.popleft()

    def pool_use(self) -> PoolUse:
        return PoolUse(self.name, self._ranges.used, self._ranges.budget, len(self._waiters))
