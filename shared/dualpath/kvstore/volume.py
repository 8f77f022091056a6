"""The extents of a shard: room for blocks is found here, made by growing or evicting, and given back."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dualpath.kvstore.entry import ENTRY_BYTES
from dualpath.kvstore.extent import Extent, slot_bytes_of
from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.health import DiskHealth
from dualpath.kvstore.index import (
    SLOT_BITS,
    BlockIndex,
    Evict,
    Grow,
    Held,
    Shrink,
    Step,
)
from dualpath.kvstore.recovery import Recovered
from dualpath.kvstore.syncs import Syncs
from dualpath.tasks import Threads

GROW_AGAIN_S = 10.0
"""A disk that refused an extent is asked again after this; until then old blocks give way."""


class Volume:
    """Slots of one directory; belongs to one event loop, and touches files in threads.

    What it does to files goes on to its end: callers shield it (`finish`) from cancellation.
    """

    def __init__(
        self,
        root: Path,
        files: DiskFiles,
        index: BlockIndex,
        syncs: Syncs,
        threads: Threads,
        health: DiskHealth,
        *,
        held: Held,
        direct: bool,
    ) -> None:
        self._root = root
        self._files = files
        self._index = index
        self._syncs = syncs
        self._threads = threads
        self._health = health
        self._counters = health.counters
        self._held = held
        self._direct = direct
        self.mapped = not direct
        """Whether all extents can be read in place."""
        self._extents: dict[tuple[str, int], Extent] = {}
        self._allocating = asyncio.Lock()
        self._grow_from: dict[str, float] = {}

    async def take_over(self, recovered: Recovered) -> None:
        """Know what was found on the disk, and cut what is more than the capacity."""
        index = self._index
        for space in recovered.spaces:
            index.open_space(space.name, space.slot_bytes)
            taken = np.asarray(space.stored.slots + space.aside + space.void, np.int64)
            taken.sort()
            for number, extent in space.extents.items():
                first, end = np.searchsorted(
                    taken, [number << SLOT_BITS, (number + 1) << SLOT_BITS]
                ).tolist()
                self._add(space.name, extent)
                index.add_extent(
                    space.name, number, extent.slots, frozenset(taken[first:end].tolist())
                )
            for slot in space.aside:
                index.set_aside(space.name, slot, len(space.aside))
            index.load(space.name, space.stored.keys, space.stored.slots, space.stored.rows)
        for space in recovered.spaces:
            await self.retire(space.name, space.void)
        while step := index.excess():
            if not await self._make(step.space, step):
                return

    def extent(self, space: str, slot: int) -> Extent:
        return self._extents[space, slot >> SLOT_BITS]

    async def slots(self, space: str, block_bytes: int, count: int) -> list[int]:
        """Up to `count` slots for new blocks, the caller's until it inserts a block or gives them back."""
        async with self._allocating:
            self._index.open_space(space, slot_bytes_of(block_bytes))
            taken = self._index.take(space, count)
            while len(taken) < count:
                step = self._index.room(
                    space,
                    count - len(taken),
                    self._held,
                    may_grow=asyncio.get_running_loop().time() >= self._grow_from.get(space, 0.0),
                )
                if step is None:
                    self._counters["write_no_space"] += count - len(taken)
                    break
                if not await self._make(space, step):
                    break
                taken += self._index.take(space, count - len(taken))
        return taken

    async def retire(self, space: str, slots: Sequence[int]) -> bool:
        """Clear the entries of slots that are the caller's and give these back. False where the disk refuses:
        then nobody uses them again before the store is opened anew."""
        by_extent: defaultdict[Extent, list[int]] = defaultdict(list)
        for slot in slots:
            by_extent[self.extent(space, slot)].append(slot)
        for extent, own in by_extent.items():
            try:
                await self._threads.run(partial(extent.clear, own))
            except OSError as error:
                self._health.failed("write", error)
                return False
            self._index.release(space, own)
        return True

    async def evict(self, space: str, step: Evict) -> bool:
        self._counters["evicted"] += step.blocks
        return await self.retire(space, step.slots)

    async def give_up(self, steps: Sequence[Shrink]) -> None:
        """Carry out what the index has decided about extents."""
        for step in steps:
            await self._make(step.space, step)

    async def collect(self) -> None:
        """Give up damaged blocks, and extents that hold none."""
        for space in self._index.spaces():
            await self.evict(space, self._index.reclaim(space))
        await self.give_up(self._index.idle_extents())

    async def drop(self, space: str) -> None:
        """Give up a namespace that nobody uses, and its directory. Raises OSError."""
        await self.give_up(self._index.drop(space))
        await self._threads.run(partial(_remove_directory, self._root / space))

    async def close(self) -> None:
        for extent in self._extents.values():
            extent.close()
        self._extents.clear()

    # ── steps ──────────────────────────────────────────────────────────────────────────────────────
    async def _make(self, space: str, step: Step) -> bool:
        """Whether it makes sense to look for room again."""
        match step:
            case Grow():
                return await self._grow(space, step)
            case Evict():
                return await self.evict(space, step)
            case Shrink():
                return await self._shrink(step)

    async def _grow(self, space: str, step: Grow) -> bool:
        slot_bytes = slot_bytes_of(int(space.rpartition("-")[2]))
        create = partial(
            Extent.create, self._files, self._root / space, step.number, step.slots, slot_bytes
        )
        try:
            extent = await self._threads.run(create)
        except OSError as error:
            self._health.failed("write", error)
            self._grow_from[space] = asyncio.get_running_loop().time() + GROW_AGAIN_S
            return True
        self._add(space, extent)
        self._index.add_extent(space, step.number, extent.slots)
        return True

    async def _shrink(self, step: Shrink) -> bool:
        self._counters["evicted"] += step.blocks
        at = (step.space, step.number)
        extent = self._extents[at] if step.slots else self._extents.pop(at)
        async with self._syncs.lock:
            try:
                if step.slots:
                    await self._threads.run(partial(extent.shrink, step.slots))
                else:
                    self._syncs.removed(extent)
                    await self._threads.run(extent.remove)
            except OSError as error:
                self._health.failed("write", error)
                return False
        return True

    def _add(self, space: str, extent: Extent) -> None:
        if self._direct:
            extent.read_directly()
        else:
            self.mapped &= extent.map()
        self._extents[space, extent.number] = extent


def _remove_directory(path: Path) -> None:
    (path / "namespace.json").unlink(missing_ok=True)
    path.rmdir()


def allocated_bytes(slots: int, block_bytes: int) -> int:
    """What so many slots take of the disk, tables included."""
    return slots * (slot_bytes_of(block_bytes) + ENTRY_BYTES)
