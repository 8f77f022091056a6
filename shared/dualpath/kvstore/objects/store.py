"""The store over an S3-compatible object store: an object per block."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from dualpath.kvstore.api import BlockStore, PrefixMatch, ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.charging import charge_read, charge_write
from dualpath.kvstore.disk import namespace_dir
from dualpath.kvstore.objects.bucket import Bucket, BucketError
from dualpath.kvstore.objects.known import Known
from dualpath.kvstore.sealed import TRAILER_BYTES, is_whole, seal
from dualpath.kvstore.views import checked_views, first_places
from dualpath.lanes.api import Nic
from dualpath.tasks import Threads
from dualpath.telemetry.logs import get_logger
from dualpath.wire.store import Namespace

log = get_logger(__name__)

MATCH_DEADLINE_S = 2.0
"""What has not been answered then is not there."""

KNOWN_KEYS, KNOWN_S = 1 << 18, 60.0
"""A block that was seen is taken to be there for so long: if it is not, its read says so."""


class _NothingEvicts:
    """The lease of a match: nobody of a cluster removes objects."""


class ObjectStore(BlockStore):
    """What is read is verified before it goes to the caller's memory, so a request that is given up writes nowhere.

    Room is made by the bucket's own lifecycle rules, which know no leases: a block that they take is not there.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        fingerprint: str,
        block_bytes: int,
        nic: Nic,
        requests: int = 32,
        match_deadline_s: float = MATCH_DEADLINE_S,
    ) -> None:
        """`requests` are under way at a time, at most."""
        self.namespace = Namespace(fingerprint, block_bytes)
        self.counters: Counter[str] = Counter()
        """Blocks by what became of them: `read_found`, `read_absent`, …, `write_stored`, …"""
        self._bucket = bucket
        self._nic = nic
        self._space = namespace_dir(self.namespace)
        self._turn = asyncio.Semaphore(requests)
        self._requests = requests
        self._match_deadline_s = match_deadline_s
        self._known = Known(KNOWN_KEYS, KNOWN_S)
        self._threads = Threads(2, "objects")
        self._failing = False

    def _path(self, key: bytes) -> str:
        return f"{self._space}/blocks/{key.hex()}"

    async def start(self) -> None:
        """Say what a namespace is, for whoever looks into the bucket. Never fails: an object store that does not
        answer holds nothing, which is told."""
        try:
            await self._bucket.create(
                f"{self._space}/namespace.json", msgspec.json.encode(self.namespace)
            )
        except BucketError as error:
            self._failed("write", error)

    async def close(self) -> None:
        self._threads.close()

    # ── match ──────────────────────────────────────────────────────────────────────────────────────
    async def match(self, keys: Sequence[bytes], *, lease_s: float = 0.0) -> PrefixMatch:
        blocks = 0
        try:
            async with asyncio.timeout(self._match_deadline_s):
                step = self._requests
                while blocks < len(keys):
                    # Further with each step: a miss is not looked for in vain, a long prefix takes few steps.
                    asked = keys[blocks : blocks + step]
                    there = await self._there(asked)
                    hole = there.index(False) if False in there else len(there)
                    blocks += hole
                    if hole < len(there):
                        break
                    step *= 2
        except (BucketError, TimeoutError) as error:
            self._failed("match", error)
        return PrefixMatch(blocks, _NothingEvicts() if blocks and lease_s > 0 else None)

    async def _there(self, keys: Sequence[bytes]) -> list[bool]:
        there = [self._known.holds(key, time.monotonic()) for key in keys]

        async def ask(index: int) -> None:
            async with self._turn:
                size = await self._bucket.size(self._path(keys[index]))
            there[index] = size == self.namespace.block_bytes + TRAILER_BYTES
            if there[index]:
                self._known.add(keys[index], time.monotonic())

        await _all(ask(index) for index, known in enumerate(there) if not known)
        return there

    async def release(self, match: PrefixMatch) -> None:
        """Nothing is held."""

    # ── read ───────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], *, deadline_s: float
    ) -> list[ReadStatus]:
        """Raises ValueError where a view is not of the block's size, or their number not that of the keys."""
        into = checked_views(self.namespace.block_bytes, keys, into)
        statuses = [ReadStatus.FAILED] * len(keys)

        async def read_one(index: int) -> None:
            statuses[index] = await self._read(keys[index], into[index])

        await self._until(deadline_s, len(keys), read_one, "read")
        for status in statuses:
            self.counters[f"read_{status.name.lower()}"] += 1
        return statuses

    async def _read(self, key: bytes, into: memoryview) -> ReadStatus:
        got = await self._bucket.get(self._path(key))
        if got is None:
            self._known.forget(key)
            return ReadStatus.ABSENT
        data, tag = got
        await charge_read(self._nic, len(data))
        if await self._threads.run_or_inline(partial(_take, key, data, into), len(data)):
            self._known.add(key, time.monotonic())
            return ReadStatus.FOUND
        self._known.forget(key)
        log.warning("corrupt block is put aside", space=self._space, key=key.hex())
        await self._bucket.move(self._path(key), f"{self._space}/aside/{key.hex()}", tag)
        return ReadStatus.CORRUPT

    # ── write ──────────────────────────────────────────────────────────────────────────────────────
    async def write(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[memoryview],
        *,
        deadline_s: float,
        depth: int = 0,
    ) -> list[WriteStatus]:
        """Raises ValueError as `read` does. A key that comes twice is written once."""
        blocks = checked_views(self.namespace.block_bytes, keys, blocks)
        first = first_places(keys)
        unique = list(first)
        outcome = dict.fromkeys(unique, WriteStatus.NOT_STORED)

        async def write_one(index: int) -> None:
            key = unique[index]
            outcome[key] = await self._write(key, blocks[first[key]], depth + first[key])

        await self._until(deadline_s, len(unique), write_one, "write")
        for status in outcome.values():
            self.counters[f"write_{status.name.lower()}"] += 1
        return [outcome[key] for key in keys]

    async def _write(self, key: bytes, block: memoryview, depth: int) -> WriteStatus:
        size = await self._bucket.size(self._path(key))
        if size == self.namespace.block_bytes + TRAILER_BYTES:
            self._known.add(key, time.monotonic())
            return WriteStatus.EXISTS
        if size is not None:
            # Cut short: so no block of ours, but it is in the way.
            await self._bucket.delete([self._path(key)])
        # A copy: the request may go on for a moment after it was given up.
        data = await self._threads.run_or_inline(partial(_sealed, key, block, depth), len(block))
        await charge_write(self._nic, len(data))
        stored = await self._bucket.create(self._path(key), data)
        self._known.add(key, time.monotonic())
        return WriteStatus.STORED if stored else WriteStatus.EXISTS

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────
    async def stat(self) -> StoreStat:
        """Of this namespace; lists its objects."""
        blocks = 0
        try:
            async for _ in self._bucket.list(f"{self._space}/blocks/"):
                blocks += 1
        except BucketError as error:
            self._failed("stat", error)
        return StoreStat(blocks, blocks * self.namespace.block_bytes)

    async def _until(
        self,
        deadline_s: float,
        count: int,
        do: Callable[[int], Coroutine[Any, Any, None]],
        what: str,
    ) -> None:
        """Do something to each of `count` blocks, `requests` at a time, until the deadline. Failures are told."""
        ends = asyncio.get_running_loop().time() + deadline_s

        async def one(index: int) -> None:
            if asyncio.get_running_loop().time() >= ends:
                return
            try:
                async with asyncio.timeout_at(ends), self._turn:
                    await do(index)
            except (BucketError, TimeoutError) as error:
                self._failed(what, error)
            else:
                self._worked()

        indices = iter(range(count))

        async def work() -> None:
            for index in indices:
                await one(index)

        await _all(work() for _ in range(min(count, self._requests)))

    def _failed(self, what: str, error: Exception) -> None:
        """Count a failure; warn about the first of a row only."""
        self.counters[f"{what}_errors"] += 1
        if not self._failing:
            self._failing = True
            text = str(error) or "it did not answer in time"
            log.warning(f"the object store refuses to {what} blocks", error=text)

    def _worked(self) -> None:
        if self._failing:
            self._failing = False
            log.info("the object store works again")


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once, to their ends. A failure ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _take(key: bytes, data: memoryview, into: memoryview) -> bool:
    """Copy a block to its place if it is right."""
    block = data[: len(into)]
    if len(data) != len(into) + TRAILER_BYTES or not is_whole(key, block, data[len(into) :]):
        return False
    into[:] = block
    return True


def _sealed(key: bytes, block: memoryview, depth: int) -> bytes:
    return b"".join((block, seal(key, block, depth)))
