"""Which writes are on the disk for good: writes are counted, and synced together (group commit)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from dualpath.kvstore.extent import Extent
from dualpath.kvstore.syncmark import SyncMark
from dualpath.tasks import Threads, finish


class Syncs:
    """Belongs to one event loop. `lock` keeps extents from being removed while they are synced."""

    def __init__(self, mark: SyncMark, last_seq: int, unsynced: Iterable[Extent]) -> None:
        self.lock = asyncio.Lock()
        self.rounds = 0
        """Syncs that have been begun."""
        self._mark = mark
        self._last_seq = last_seq
        self._open: set[int] = set()
        self._dirty: set[Extent] = set(unsynced)
        self._synced_round = 0
        self._broken = False
        self._threads = Threads(1, "sync")

    @property
    def needed(self) -> bool:
        """Whether anything was written since the last sync."""
        return bool(self._dirty)

    def begin(self, count: int) -> range:
        """Sequence numbers for `count` blocks that are written next."""
        numbers = range(self._last_seq + 1, self._last_seq + 1 + count)
        self._last_seq += count
        self._open.update(numbers)
        return numbers

    def end(self, numbers: range, extents: Iterable[Extent]) -> None:
        """These blocks and their entries have been written, or will not be."""
        self._open.difference_update(numbers)
        self._dirty.update(extents)

    def removed(self, extent: Extent) -> None:
        self._dirty.discard(extent)

    async def through(self) -> None:
        """Wait until all that was written before this call is on the disk. Raises OSError where it is not."""
        before = self.rounds
        async with self.lock:
            if self._synced_round <= before:
                await finish(self._round())

    async def _round(self) -> None:
        self.rounds += 1
        this, upto = self.rounds, min(self._open, default=self._last_seq + 1) - 1
        dirty, self._dirty = self._dirty, set()
        try:
            await self._threads.run(partial(_sync, dirty))
            if not self._broken:
                await self._threads.run(partial(self._mark.write, upto))
        except OSError:
            # What the kernel has dropped no later sync brings back: the mark stays where it is, and all
            # that is above it will be checked when the store opens.
            self._broken = True
            self._dirty |= dirty
            raise
        self._synced_round = this

    def close(self) -> None:
        self._threads.close()
        self._mark.close()


def _sync(extents: set[Extent]) -> None:
    for extent in extents:
        extent.sync()
