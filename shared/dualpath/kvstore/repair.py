"""Copies of blocks that shards were found to lack: written again, out of what was read from another copy."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dualpath.kvstore.api import WriteStatus
from dualpath.kvstore.shard import ShardLink
from dualpath.kvstore.shard_writes import ShardWrites
from dualpath.tasks import Tasks

REPAIR_BYTES = 32 << 20
"""What waits to be repaired takes so much memory at most; what would take more is left until it is read again."""

REPAIR_BATCH_BYTES = 4 << 20
REPAIR_DEADLINE_S = 30.0
MAX_KNOWN = 65_536
"""So many of a shard's missing blocks are remembered, those told last."""


@dataclass(frozen=True)
class _Copy:
    key: bytes
    block: memoryview
    depth: int


class Repairs:
    """Repairs of one client of several shards; belongs to one event loop.

    They go one small batch at a time, so that reads and writes that somebody waits for have nearly all of the NIC.
    `counters` counts `copies_repaired` and `copies_not_repaired`.
    """

    def __init__(self, writes: ShardWrites, tasks: Tasks, counters: Counter[str]) -> None:
        self._writes = writes
        self._tasks = tasks
        self._counters = counters
        self._lacking: dict[str, OrderedDict[bytes, None]] = {}
        self._waiting: dict[ShardLink, OrderedDict[bytes, _Copy]] = {}
        self._nbytes = 0
        self._running = False

    @property
    def pending_bytes(self) -> int:
        """Memory that waits to be repaired."""
        return self._nbytes

    # ── what is known ──────────────────────────────────────────────────────────────────────────────
    def lacks(self, shard_id: str, key: bytes) -> bool:
        """Whether a shard has said that it has no such block, though another has."""
        return key in self._lacking.get(shard_id, ())

    def told(self, shard_id: str, keys: Iterable[bytes], *, there: bool) -> None:
        """A shard has these blocks, or lacks them."""
        lacking = self._lacking.setdefault(shard_id, OrderedDict())
        if there:
            if lacking:
                for key in keys:
                    lacking.pop(key, None)
            return
        lacking.update(dict.fromkeys(keys))
        while len(lacking) > MAX_KNOWN:
            lacking.popitem(last=False)

    # ── what is done ───────────────────────────────────────────────────────────────────────────────
    def write(self, link: ShardLink, key: bytes, block: memoryview, depth: int) -> None:
        """Have a copy written to a shard. `block`, which is right, is copied here. `depth`: its place among the
        blocks that it was read with."""
        waiting = self._waiting.setdefault(link, OrderedDict())
        if key in waiting or not link.up:
            return
        if self._nbytes + block.nbytes > REPAIR_BYTES:
            self._counters["copies_not_repaired"] += 1
            return
        waiting[key] = _Copy(key, memoryview(bytes(block)), depth)
        self._nbytes += block.nbytes
        if not self._running:
            self._running = True
            self._tasks.spawn(self._run(), "repair copies")

    async def _run(self) -> None:
        try:
            while self._waiting:
                link, waiting = next(iter(self._waiting.items()))
                if waiting:
                    await self._batch(link, waiting)
                else:
                    del self._waiting[link]
        finally:
            self._running = False

    async def _batch(self, link: ShardLink, waiting: OrderedDict[bytes, _Copy]) -> None:
        batch, nbytes = list[_Copy](), 0
        for copy in waiting.values():
            if batch and nbytes + copy.block.nbytes > REPAIR_BATCH_BYTES:
                break
            batch.append(copy)
            nbytes += copy.block.nbytes
        try:
            statuses = await self._put(link, batch)
        finally:
            for copy in batch:
                del waiting[copy.key]
            self._nbytes -= nbytes
        right = [
            copy.key
            for copy, status in zip(batch, statuses, strict=True)
            if status is not WriteStatus.NOT_STORED
        ]
        self.told(link.address.endpoint_id, right, there=True)
        self._counters["copies_repaired"] += statuses.count(WriteStatus.STORED)
        self._counters["copies_not_repaired"] += len(batch) - len(right)

    async def _put(self, link: ShardLink, batch: Sequence[_Copy]) -> list[WriteStatus]:
        return await self._writes.write(
            link,
            [copy.key for copy in batch],
            [copy.block for copy in batch],
            [copy.depth for copy in batch],
            asyncio.get_running_loop().time() + REPAIR_DEADLINE_S,
        )
