"""Write-back: every full block goes to storage at once (paper §2), and decoding never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dualpath.blocks import KVGeometry
from dualpath.kvstore.api import BlockStore, WriteStatus
from dualpath.memory.arena import Arena
from dualpath.model.api import DecodeRow
from dualpath.node.copies import Copier, Copy
from dualpath.node.device_copies import DeviceCopies
from dualpath.tasks import Tasks
from dualpath.telemetry.metrics import Metrics
from dualpath.transport.api import TransportError


class WriteBack:
    """Stores blocks out of arena slots, and gives the slots back when the data plane is done with them."""

    def __init__(
        self,
        store: BlockStore,
        arena: Arena,
        geometry: KVGeometry,
        copier: Copier,
        metrics: Metrics,
        *,
        deadline_s: float,
        on_release: Callable[[], None],
    ) -> None:
        self._store = store
        self._arena = arena
        self._geometry = geometry
        self._copier = copier
        self._metrics = metrics
        self._deadline_s = deadline_s
        self._on_release = on_release
        self._tasks = Tasks()
        self.stored = 0
        self.not_stored = 0

    def prompt_blocks(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        depth: int,
        copied: asyncio.Event,
        on_stored: Callable[[int], None],
    ) -> list[asyncio.Task[object]]:
        """Store a prompt's new blocks, `depth` blocks before them, out of their slots, which are this object's from
        now on. They are released when they are stored and `copied` (the H2D that reads them too has ended) is set.
        `on_stored` is told up to which block the prompt is readable now."""
        if not keys:
            on_stored(depth)
            return []
        work = self._store_slots(list(keys), list(slots), depth, copied, on_stored)
        return [self._tasks.spawn(work, "store prompt blocks")]

    async def decoded_block(
        self, key: bytes, row: DecodeRow, block: int, device: DeviceCopies
    ) -> list[asyncio.Task[object]]:
        """Copy block number `block` off the device into a write-back slot and store it from there.

        Returns the store's task, once the device's memory is no longer read; nothing where no slot was free, or the
        CNIC failed: then the block is not stored.
        """
        slot = self._arena.take_reserved()
        if slot is None:
            self._count([WriteStatus.NOT_STORED], "no_slot")
            return []
        try:
            await self._off_the_device(row, block, self._arena.view(slot), device)
        except TransportError:
            self._arena.release([slot])
            self._count([WriteStatus.NOT_STORED], "cnic")
            return []
        except BaseException:
            self._arena.release([slot])
            raise
        return [
            self._tasks.spawn(self._store_decoded(key, slot, block, device), "store decoded block")
        ]

    async def _off_the_device(
        self, row: DecodeRow, block: int, target: memoryview, device: DeviceCopies
    ) -> None:
        geometry, start = self._geometry, block * self._geometry.block_tokens
        copies: list[Copy] = []
        for layer in range(geometry.n_layers):
            at = geometry.flat_offset(row.capacity, layer, start)
            size = geometry.block_tokens * geometry.row_bytes[layer]
            await device.to_host(row.kv, at, at + size)
            offset = geometry.layer_offset(layer)
            copies.append((target[offset : offset + size], row.kv.wire[at : at + size]))
        await self._copier.run(copies)

    async def _store_decoded(self, key: bytes, slot: int, depth: int, device: DeviceCopies) -> None:
        try:
            await device.charge(self._geometry.full_block_bytes)
        except BaseException:
            self._arena.release([slot])
            raise
        await self._store_slots([key], [slot], depth)

    async def _store_slots(
        self,
        keys: list[bytes],
        slots: list[int],
        depth: int,
        copied: asyncio.Event | None = None,
        on_stored: Callable[[int], None] = lambda _: None,
    ) -> None:
        clean: dict[int, bytes] = {}
        try:
            statuses = await self._store.write(
                keys,
                [self._arena.view(slot) for slot in slots],
                deadline_s=self._deadline_s,
                depth=depth,
            )
            self._count(statuses, "shard")
            on_stored(depth + _leading(statuses))
            if copied is not None:
                await copied.wait()
            clean = {
                slot: key
                for slot, key, status in zip(slots, keys, statuses, strict=True)
                if status is WriteStatus.STORED
            }
        finally:
            self._arena.release(slots, clean)
            self._on_release()

    def _count(self, statuses: Sequence[WriteStatus], reason: str) -> None:
        missing = sum(status is WriteStatus.NOT_STORED for status in statuses)
        self.stored += len(statuses) - missing
        self.not_stored += missing
        self._metrics.blocks_written.inc(len(statuses) - missing)
        if missing:
            self._metrics.blocks_not_stored.labels(reason=reason).inc(missing)

    async def close(self) -> None:
        """Let what is under way end: each write has its deadline."""
        await self._tasks.join()


def _leading(statuses: Sequence[WriteStatus]) -> int:
    """Blocks from the first on that can be read."""
    for index, status in enumerate(statuses):
        if status is WriteStatus.NOT_STORED:
            return index
    return len(statuses)
