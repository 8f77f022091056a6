"""Blocks on a disk: preallocated extents per namespace, an index of what is there in memory.

    root/lock                              held (flock) by the process that uses the store
    root/synced                            how far all that was written is on the disk (see `syncmark`)
    root/<namespace>/namespace.json        fingerprint and block size, for people
    root/<namespace>/000012.slots, .table  an extent (see `extent`)

What is acknowledged when: a block is STORED when it is readable, and from then on it survives the death of the
process. It survives a power loss once it was synced: `sync_s` later, or, with `fsync`, before it counts as STORED.
After either, each block is there and right, or absent. Blocks are hashed when they arrive; whoever reads one
compares it with its checksum and says so (`suspect`) where it differs.

The last touch of a block is remembered in memory: after a restart, it counts as touched when it was written.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from dualpath.kvstore.api import ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.health import DiskHealth
from dualpath.kvstore.index import EXTENT_BYTES, BlockIndex, BlockName
from dualpath.kvstore.lock import StoreInUse as StoreInUse
from dualpath.kvstore.lock import StoreLock
from dualpath.kvstore.putting import NewBlock, Put, put_blocks
from dualpath.kvstore.quarantine import Quarantine, Suspicion
from dualpath.kvstore.reading import BlockReader, StoredBlock
from dualpath.kvstore.recovery import Recovered, recover
from dualpath.kvstore.syncmark import SyncMark
from dualpath.kvstore.syncs import Syncs
from dualpath.kvstore.volume import Volume
from dualpath.tasks import Tasks, Threads, finish
from dualpath.wire.store import Namespace

SYNC_S = 1.0


@lru_cache(1024)
def namespace_dir(namespace: Namespace) -> str:
    """Directory name of a namespace: safe whatever the fingerprint is made of."""
    digest = hashlib.blake2b(namespace.fingerprint.encode(), digest_size=8).hexdigest()
    return f"{digest}-{namespace.block_bytes}"


def _nobody(name: BlockName) -> bool:
    return False


@dataclass(frozen=True)
class DiskOptions:
    """How a shard keeps its blocks."""

    fsync: bool = False
    """A block counts as stored only when it would survive a power loss."""
    sync_s: float = SYNC_S
    """Without `fsync`: what was written is synced so often."""
    capacity_bytes: int | None = None
    """All extents take this at most."""
    ttl_s: float | None = None
    """Blocks that nobody touched for so long are given up."""
    direct: bool = False
    """Read past the page cache."""
    extent_bytes: int = EXTENT_BYTES
    threads: int = 4


class DiskStore:
    """Blocks of all namespaces under one directory. One event loop owns it; files are touched in threads."""

    def __init__(
        self,
        root: Path,
        options: DiskOptions | None = None,
        *,
        held: Callable[[BlockName], bool] = _nobody,
        files: DiskFiles | None = None,
    ) -> None:
        """Blocks that are `held` never give way."""
        self.root = root
        self.options = options or DiskOptions()
        self._health = DiskHealth(root)
        self.counters = self._health.counters
        self._files = files or DiskFiles()
        self._held = held
        self._threads = Threads(self.options.threads, "disk")
        self._index = BlockIndex(self.options.capacity_bytes, self.options.extent_bytes)
        self._tasks = Tasks()
        self._busy: dict[BlockName, asyncio.Future[None]] = {}
        """Blocks that are being written or checked."""
        self._lock: StoreLock | None = None
        self._syncs: Syncs
        self._volume: Volume
        self._reader: BlockReader
        self._quarantine: Quarantine

    # ── life ───────────────────────────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        """Lock the directory, learn what is there, give up what is more than it may hold. Raises StoreInUse, or
        OSError where it is unusable."""
        self._lock = await self._threads.run(partial(StoreLock, self.root))
        try:
            mark, recovered = await self._threads.run(self._recover)
        except BaseException:
            self._lock.close()
            self._lock = None
            raise
        self.counters.update(recovered.counters)
        self._syncs = Syncs(mark, recovered.last_seq, recovered.unsynced)
        self._volume = Volume(
            self.root,
            self._files,
            self._index,
            self._syncs,
            self._threads,
            self._health,
            held=self._held,
            direct=self.options.direct,
        )
        self._reader = BlockReader(
            self._index,
            self._volume,
            self._threads,
            self._health,
            direct=self.options.direct,
        )
        self._quarantine = Quarantine(self._index, self._volume, self._threads, self._health)
        await finish(self._volume.take_over(recovered))
        self._tasks.spawn(self._look_after(), "sync blocks")

    def _recover(self) -> tuple[SyncMark, Recovered]:
        assert self._lock is not None
        writable = self._lock.writable
        mark = SyncMark(self._files, self.root, writable=writable)
        return mark, recover(self.root, self._files, mark.seq, writable=writable)

    async def close(self) -> None:
        """Sync what was written, end the threads, unlock the directory."""
        if self._lock is not None:
            await self._tasks.close()
            if self._syncs.needed and self._lock.writable:
                await self._synced()
            self._threads.close()
            await self._volume.close()
            self._syncs.close()
            self._lock.close()
            self._lock = None
        self._threads.close()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self.options.sync_s)
            if self.options.ttl_s is not None:
                await finish(self.expire(time.time() - self.options.ttl_s))
            if self._syncs.needed:
                await self._synced()

    async def _synced(self) -> bool:
        try:
            await self._syncs.through()
        except OSError as error:
            self._health.failed("sync", error)
            return False
        self._health.worked("sync")
        return True

    async def expire(self, since: float) -> int:
        """Give up the blocks that nobody has touched since then (seconds since the epoch); how many those were."""
        count = 0
        for space in self._index.spaces():
            step = self._index.untouched(space, since, self._held)
            count += step.blocks
            self.counters["expired"] += step.blocks
            await self._volume.retire(space, step.slots)
        return count

    async def collect(self) -> None:
        """Give up damaged blocks that were kept, and give extents without a block back to the disk."""
        await finish(self._volume.collect())

    async def drop(self, namespace_directory: str) -> None:
        """Give up all blocks of a namespace that nobody uses. Raises OSError, KeyError where it is not there."""
        await finish(self._volume.drop(namespace_directory))

    # ── what is there ──────────────────────────────────────────────────────────────────────────────
    def present(self, namespace: Namespace, keys: Sequence[bytes]) -> bytes:
        """One byte per key: 1 where it is stored, else 0."""
        return self._index.present(namespace_dir(namespace), keys)

    def touch(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """Count the blocks of a chain as used now."""
        self._index.touch(namespace_dir(namespace), keys, time.time())

    def stat(self, namespace: Namespace | None = None) -> StoreStat:
        """Blocks and their bytes, of one namespace or of all."""
        counts = self._index.counts()
        spaces = list(counts) if namespace is None else [namespace_dir(namespace)]
        sizes = [(counts.get(space, 0), int(space.rpartition("-")[2])) for space in spaces]
        return StoreStat(sum(n for n, _ in sizes), sum(n * size for n, size in sizes))

    @property
    def allocated_bytes(self) -> int:
        """What the extents take of the disk."""
        return self._index.allocated_bytes

    def read_bytes(self, namespace: Namespace) -> int:
        """The size of buffers to read into: of a block, or, where reads pass by the page cache, of its slot; then
        they begin with a page."""
        size = namespace.block_bytes
        return slot_bytes_of(size) if self.options.direct else size

    @property
    def reads_in_place(self) -> bool:
        """Whether `in_place` may be used: not past the page cache, nor where the file system maps no files."""
        return self._volume.mapped

    # ── blocks ─────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, namespace: Namespace, key: bytes, into: memoryview
    ) -> tuple[ReadStatus, bytes]:
        """Read one block, see `read_many`."""
        return (await self.read_many(namespace, [key], [into]))[0]

    async def read_many(
        self, namespace: Namespace, keys: Sequence[bytes], into: Sequence[memoryview]
    ) -> list[tuple[ReadStatus, bytes]]:
        """Read blocks, each into memory of `read_bytes`; the second value of each is the checksum that it was
        stored with, for the reader to compare.

        FAILED where the disk could not be read, CORRUPT where the file ends before the block does. What `into`
        holds after any status but FOUND is undefined. When this ends, also by cancellation, `into` is left alone.
        """
        found = await self._reader.read(namespace_dir(namespace), keys, into)
        self._suspect_cut(namespace, keys, found)
        return [(block.status, block.checksum) for block in found]

    def cached(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """How many of these blocks, from the first on, can be read in place without waiting for the disk."""
        return self._reader.cached(namespace_dir(namespace), keys, namespace.block_bytes)

    @asynccontextmanager
    async def in_place(
        self,
        namespace: Namespace,
        keys: Sequence[bytes],
        ahead: Sequence[bytes] = (),
        *,
        cached: bool = False,
    ) -> AsyncIterator[list[StoredBlock]]:
        """The blocks as parts of files, in the page cache; statuses as those of `read_many`. Nothing is written
        over them while the context is open. Unless `cached` has just told that they are there, they are fetched
        first, and the blocks of `ahead` are on their way then as well."""
        space = namespace_dir(namespace)
        reading = self._reader.in_place(space, keys, namespace.block_bytes, ahead, cached=cached)
        async with reading as found:
            self._suspect_cut(namespace, keys, found)
            yield found

    def _suspect_cut(
        self, namespace: Namespace, keys: Sequence[bytes], found: Sequence[StoredBlock]
    ) -> None:
        cut = [
            k for k, block in zip(keys, found, strict=True) if block.status is ReadStatus.CORRUPT
        ]
        if cut:
            self.suspect(namespace, cut)

    async def write(self, namespace: Namespace, blocks: Sequence[NewBlock]) -> list[WriteStatus]:
        """Store blocks, except those that are there. NOT_STORED where the disk refuses, all that it may hold is
        held, or a block does not match its checksum. When this ends, also by cancellation, the blocks' memory is
        not read any more."""
        statuses = await finish(self._write(namespace, blocks))
        for status in statuses:
            self.counters[f"write_{status.name.lower()}"] += 1
        return statuses

    async def _write(self, namespace: Namespace, blocks: Sequence[NewBlock]) -> list[WriteStatus]:
        space = namespace_dir(namespace)
        names = [BlockName(space, block.key) for block in blocks]
        statuses = [WriteStatus.EXISTS] * len(blocks)
        mine: dict[BlockName, int] = {}
        others: list[tuple[int, asyncio.Future[None]]] = []
        for index, name in enumerate(names):
            if name in self._busy:
                others.append((index, self._busy[name]))
            elif name not in mine and self._index.find(name) is None:
                mine[name] = index
        ended = asyncio.get_running_loop().create_future()
        self._busy.update(dict.fromkeys(mine, ended))
        try:
            stored = await self._store(namespace, [blocks[i] for i in mine.values()])
        finally:
            for name in mine:
                del self._busy[name]
            ended.set_result(None)
        for index, status in zip(mine.values(), stored, strict=True):
            statuses[index] = status
        again = []
        for index, other in others:
            await other
            if self._index.find(names[index]) is None:
                again.append(index)
        if again:
            retried = await self._write(namespace, [blocks[index] for index in again])
            for index, status in zip(again, retried, strict=True):
                statuses[index] = status
        return statuses

    async def _store(self, namespace: Namespace, blocks: list[NewBlock]) -> list[WriteStatus]:
        """Store blocks that are not there and that nobody else stores."""
        statuses = [WriteStatus.NOT_STORED] * len(blocks)
        if not blocks or not await self._prepare(namespace):
            return statuses
        space = namespace_dir(namespace)
        slots = await self._volume.slots(space, namespace.block_bytes, len(blocks))
        seqs, now = self._syncs.begin(len(slots)), time.time()
        puts = [
            Put(self._volume.extent(space, slot), slot, seq, block)
            for slot, seq, block in zip(slots, seqs, blocks, strict=False)
        ]
        outcome = await self._threads.run(partial(put_blocks, puts, now))
        self._syncs.end(seqs, {put.extent for put in puts})
        if outcome.error is not None:
            self._health.failed("write", outcome.error)
        elif outcome.stored:
            self._health.worked("write")
        self.counters["arrived_damaged"] += outcome.damaged
        durable = not self.options.fsync or not outcome.stored or await self._synced()
        for index in sorted(outcome.stored, key=lambda index: -blocks[index].depth):
            block = blocks[index]
            name = BlockName(space, block.key)
            self._index.insert(name, slots[index], block.checksum, block.depth, now)
            if durable:
                statuses[index] = WriteStatus.STORED
        self._index.release(space, [slots[index] for index in outcome.untouched])
        await self._volume.retire(space, [slots[index] for index in outcome.doubtful])
        return statuses

    async def _prepare(self, namespace: Namespace) -> bool:
        """Make a namespace's directory. False where the disk refuses."""
        directory = self.root / namespace_dir(namespace)
        assert self._lock is not None
        if not self._lock.writable:
            self._health.failed("write", OSError(30, "the file system is read-only"))
            return False
        if directory.name in self._index.spaces():
            return True

        def make() -> None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "namespace.json").write_bytes(msgspec.json.encode(namespace))
            self._files.sync_directory(self.root)

        try:
            await self._threads.run(make)
        except OSError as error:
            self._health.failed("write", error)
            return False
        return True

    # ── damage ─────────────────────────────────────────────────────────────────────────────────────
    def suspect(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """A reader found that these blocks do not match their checksums. They are absent from now on, and checked
        in the background: damaged ones are put aside and can be written anew, the others come back."""
        space = namespace_dir(namespace)
        for key in dict.fromkeys(keys):
            name = BlockName(space, key)
            if name not in self._busy and (found := self._quarantine.suspect(name, time.time())):
                self._busy[name] = asyncio.get_running_loop().create_future()
                check = finish(self._check(found, namespace.block_bytes))
                self._tasks.spawn(check, "check a suspected block")

    async def _check(self, found: Suspicion, block_bytes: int) -> None:
        try:
            await self._quarantine.check(found, block_bytes)
        finally:
            self._busy.pop(found.name).set_result(None)
