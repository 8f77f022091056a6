"""Memory that blocks pass through between disk and network: bounded, page-aligned, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dualpath.memory.ranges import ALIGNMENT, RangeAllocator
from dualpath.memory.shared import SharedMemory
from dualpath.wire.types import PoolUse


class NoRoom(Exception):
    """No buffer came free in time."""


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
