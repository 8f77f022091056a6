"""Blocks that a reader found damaged: checked where they lie, and put aside or put back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.entry import Entry, State, encode_entry
from dualpath.kvstore.extent import Extent
from dualpath.kvstore.health import DiskHealth
from dualpath.kvstore.index import BlockIndex, BlockName
from dualpath.kvstore.volume import Volume
from dualpath.tasks import Threads
from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)

QUARANTINE_KEPT = 16
"""Damaged blocks of a namespace that stay on the disk, for whoever looks into it; room is made of them first."""


@dataclass(frozen=True)
class Suspicion:
    """A block that was taken out of the index; its slot is this object's."""

    name: BlockName
    slot: int
    checksum: bytes
    depth: int
    touched: float


class Quarantine:
    """Checks one block at a time; belongs to one event loop."""

    def __init__(
        self, index: BlockIndex, volume: Volume, threads: Threads, health: DiskHealth
    ) -> None:
        self._index = index
        self._volume = volume
        self._threads = threads
        self._health = health
        self._turn = asyncio.Lock()

    def suspect(self, name: BlockName, now: float) -> Suspicion | None:
        """Take a block out of the index, so that nobody reads it; None where it is not there."""
        slot = self._index.find(name)
        if slot is None:
            return None
        depth = self._index.depth(name.space, slot)
        suspicion = Suspicion(name, slot, self._index.checksum(name.space, slot), depth, now)
        self._index.remove(name)
        return suspicion

    async def check(self, what: Suspicion, block_bytes: int) -> None:
        """Read the block: right, or not readable now, it comes back; damaged, it is put aside."""
        extent = self._volume.extent(what.name.space, what.slot)
        async with self._turn:
            try:
                right = await self._threads.run(partial(_is_right, extent, what, block_bytes))
            except OSError as error:
                self._health.failed("read", error)
                right = True
            if right:
                self._health.counters["suspected_wrongly"] += 1
                self._index.insert(what.name, what.slot, what.checksum, what.depth, what.touched)
            else:
                await self._put_aside(extent, what)

    async def _put_aside(self, extent: Extent, what: Suspicion) -> None:
        space, key = what.name
        log.warning("corrupt block is put aside", space=space, key=key.hex())
        self._health.counters["quarantined"] += 1
        entry = Entry(key, what.checksum, 0, what.touched, what.depth, State.ASIDE)
        raw = encode_entry(what.slot, entry)
        try:
            await self._threads.run(partial(extent.record, [(what.slot, raw)]))
        except OSError as error:
            self._health.failed("write", error)
        await self._volume.retire(space, self._index.set_aside(space, what.slot, QUARANTINE_KEPT))


def _is_right(extent: Extent, what: Suspicion, block_bytes: int) -> bool:
    block = memoryview(bytearray(block_bytes))
    return extent.read(what.slot, block) and block_checksum(what.name.key, block) == what.checksum
