"""The store over its shards: one namespace, spread by rendezvous hashing, reached over a node's SNIC endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dualpath.blocks.keys import pack_keys
from dualpath.kvstore.api import BlockStore, PrefixMatch, ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum
from dualpath.kvstore.placement import Placement
from dualpath.kvstore.region import BlocksRegion
from dualpath.kvstore.shard import ShardCall, ShardLink, ShardUnavailable
from dualpath.kvstore.tasks import Tasks, Threads, finish
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, TransportError
from dualpath.wire import store as wire
from dualpath.wire.codec import MalformedMessage
from dualpath.wire.types import Address

log = get_logger(__name__)
T = TypeVar("T")
Status = TypeVar("Status", ReadStatus, WriteStatus)

MATCH_DEADLINE_S = 2.0
RELEASE_DEADLINE_S = 2.0
BATCHES_IN_FLIGHT = 2
"""Writes of one call to one shard: one is on the network while the other is on its way to the disk."""
_INLINE_BYTES = 64 * 1024
"""Checksums over less than this are made where they are asked for: a thread would cost more."""


def parse_shard(text: str) -> Address:
    """`ID=HOST:PORT` → the shard's address, without an incarnation. Raises ValueError with an example."""
    shard_id, equals, place = text.partition("=")
    host, colon, port = place.rpartition(":")
    if not (shard_id and equals and host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(
            f"{text!r} is no storage shard; write for example storage-0=127.0.0.1:7100"
        )
    return Address(shard_id, "", host.strip("[]"), int(port))


@dataclass(frozen=True)
class _Lease:
    """Leases of one match, by shard."""

    parts: tuple[tuple[ShardLink, int], ...]


class ShardStore(BlockStore):
    """Client of all shards. The owner starts the endpoint with `on_message` as its handler, and closes the
    store before the endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        shards: Sequence[Address],
        *,
        fingerprint: str,
        block_bytes: int,
        match_deadline_s: float = MATCH_DEADLINE_S,
    ) -> None:
        """Raises ValueError where `shards` is empty or names one twice."""
        self.namespace = wire.Namespace(fingerprint, block_bytes)
        self.counters: Counter[str] = Counter()
        """Blocks by what became of them: `read_found`, `read_absent`, …, `write_stored`, …"""
        self.bytes_read = 0
        self.bytes_written = 0
        self.outstanding_blocks = 0
        """Blocks asked for by reads that have neither arrived nor failed yet."""
        self._endpoint = endpoint
        self._placement = Placement([shard.endpoint_id for shard in shards])
        self._tasks = Tasks()
        self._links = {
            shard.endpoint_id: ShardLink(endpoint, shard, self._tasks) for shard in shards
        }
        self._threads = Threads(2, "checksums")
        self._match_deadline_s = match_deadline_s

    @property
    def outstanding_bytes(self) -> int:
        return self.outstanding_blocks * self.namespace.block_bytes

    def shards_up(self) -> dict[str, bool]:
        """Which shards answer, as far as known."""
        return {shard_id: link.up for shard_id, link in self._links.items()}

    async def on_message(self, peer: Address, payload: bytes) -> None:
        """Handler of the endpoint's messages. Raises for what no shard of this store would say."""
        message = wire.to_client(payload)
        link = self._links.get(peer.endpoint_id)
        if link is None:
            raise MalformedMessage(f"{peer.endpoint_id} is no shard of this store")
        link.received(peer, message)

    async def close(self) -> None:
        """End what goes on in the background; calls that are open fail."""
        for link in self._links.values():
            link.close()
        await self._tasks.close()
        self._threads.close()

    # ── match ──────────────────────────────────────────────────────────────────────────────────────
    async def match(self, keys: Sequence[bytes], *, lease_s: float = 0.0) -> PrefixMatch:
        present = bytearray(len(keys))
        leases: list[tuple[ShardLink, int]] = []

        async def ask(link: ShardLink, indices: list[int]) -> None:
            done = await self._match(link, [keys[index] for index in indices], lease_s)
            if done is None:
                return
            if done.lease:
                leases.append((link, done.lease))
            for index, there in zip(indices, done.present, strict=True):
                present[index] = there

        try:
            await _all(ask(link, indices) for link, indices in self._spread(keys))
        except asyncio.CancelledError:
            self._end_leases(leases)
            raise
        blocks = present.find(0)
        return PrefixMatch(
            len(keys) if blocks < 0 else blocks, _Lease(tuple(leases)) if leases else None
        )

    async def _match(
        self, link: ShardLink, keys: list[bytes], lease_s: float
    ) -> wire.MatchDone | None:
        """What one shard says, or None where it does not."""
        call = link.call()
        try:
            async with asyncio.timeout(self._match_deadline_s):
                question = wire.Match(call.op, self.namespace, pack_keys(keys), lease_s)
                done = await call.ask(question, wire.MatchDone)
        except ShardUnavailable as error:
            self._note(link, "match", error)
            return None
        except TimeoutError:
            link.lost(f"it did not answer within {self._match_deadline_s} s")
            return None
        finally:
            call.close()
        if len(done.present) != len(keys):
            self._note(link, "match", "it answered for another number of keys")
            return None
        return done

    async def release(self, match: PrefixMatch) -> None:
        """Returns at once: nobody need wait for it, and a lease that is not released ends by itself."""
        if isinstance(match.lease, _Lease):
            self._end_leases(match.lease.parts)

    def _end_leases(self, parts: Sequence[tuple[ShardLink, int]]) -> None:
        for link, lease in parts:
            if link.up:
                self._tell(link, wire.Release(lease))

    def _tell(
        self, link: ShardLink, message: wire.Release | wire.CancelRead | wire.CancelWrite
    ) -> None:
        self._tasks.spawn(self._tell_once(link, message), type(message).__name__)

    async def _tell_once(
        self, link: ShardLink, message: wire.Release | wire.CancelRead | wire.CancelWrite
    ) -> None:
        try:
            async with asyncio.timeout(RELEASE_DEADLINE_S):
                await link.send(message)
        except (ShardUnavailable, TimeoutError) as error:
            log.debug("a shard was not told", shard=link.address.endpoint_id, error=str(error))

    # ── read ───────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], *, deadline_s: float
    ) -> list[ReadStatus]:
        """Raises ValueError where a view is not of the block's size, or their number not that of the keys."""
        into = self._checked(keys, into)
        statuses = [ReadStatus.FAILED] * len(keys)
        ends = asyncio.get_running_loop().time() + deadline_s

        async def ask(link: ShardLink, indices: list[int]) -> None:
            got = await self._read(
                link, [keys[i] for i in indices], [into[i] for i in indices], ends
            )
            for index, status in zip(indices, got, strict=True):
                statuses[index] = status

        await _all(ask(link, indices) for link, indices in self._spread(keys))
        for status in statuses:
            self.counters[f"read_{status.name.lower()}"] += 1
        self.bytes_read += self.namespace.block_bytes * statuses.count(ReadStatus.FOUND)
        return statuses

    async def _read(
        self, link: ShardLink, keys: list[bytes], into: list[memoryview], ends: float
    ) -> list[ReadStatus]:
        region = BlocksRegion(into, self._arrived)
        region_key = self._endpoint.register(region)
        self.outstanding_blocks += len(keys)
        call = link.call()
        done: wire.ReadDone | None = None
        try:
            done = await self._ask_read(call, keys, region_key, ends)
        except (ShardUnavailable, TimeoutError) as error:
            self._note(link, "read", str(error) or "the deadline has passed")
        finally:
            call.close()
            if done is None and link.up:
                self._tell(link, wire.CancelRead(call.op))
            try:
                # After this nobody writes: what is verified below is what the caller gets.
                await finish(self._endpoint.revoke(region_key))
            finally:
                self.outstanding_blocks -= region.awaited
        if done is None:
            return [ReadStatus.FAILED] * len(keys)
        return await self._verified(link, keys, into, done)

    def _arrived(self) -> None:
        self.outstanding_blocks -= 1

    async def _ask_read(
        self, call: ShardCall, keys: list[bytes], region_key: int, ends: float
    ) -> wire.ReadDone:
        async with asyncio.timeout_at(ends):
            size = self.namespace.block_bytes
            question = wire.Read(
                call.op,
                self.namespace,
                pack_keys(keys),
                region_key,
                tuple(range(0, size * len(keys), size)),
                max(ends - asyncio.get_running_loop().time(), 0.001),
            )
            done = await call.ask(question, wire.ReadDone)
        _statuses(ReadStatus, done.statuses, keys)
        if len(done.checksums) != CHECKSUM_BYTES * len(keys):
            raise ShardUnavailable("it answered with checksums for another number of blocks")
        return done

    async def _verified(
        self, link: ShardLink, keys: list[bytes], into: list[memoryview], done: wire.ReadDone
    ) -> list[ReadStatus]:
        statuses = _statuses(ReadStatus, done.statuses, keys)
        found = [index for index, status in enumerate(statuses) if status is ReadStatus.FOUND]

        def damaged() -> list[int]:
            return [
                index
                for index in found
                if block_checksum(keys[index], into[index])
                != done.checksums[index * CHECKSUM_BYTES : (index + 1) * CHECKSUM_BYTES]
            ]

        for index in await self._hash(damaged, len(found)):
            statuses[index] = ReadStatus.CORRUPT
            log.warning(
                "block arrived damaged", shard=link.address.endpoint_id, key=keys[index].hex()
            )
        return statuses

    # ── write ──────────────────────────────────────────────────────────────────────────────────────
    async def write(
        self, keys: Sequence[bytes], blocks: Sequence[memoryview], *, deadline_s: float
    ) -> list[WriteStatus]:
        """Raises ValueError as `read` does. A key that comes twice is written once."""
        blocks = self._checked(keys, blocks)
        first: dict[bytes, int] = {}
        for index, key in enumerate(keys):
            first.setdefault(key, index)
        unique = list(first)
        outcome = dict.fromkeys(unique, WriteStatus.NOT_STORED)
        ends = asyncio.get_running_loop().time() + deadline_s
        per_batch = max(1, wire.WRITE_BATCH_BYTES // self.namespace.block_bytes)
        turns = {name: asyncio.Semaphore(BATCHES_IN_FLIGHT) for name in self._links}

        async def put(link: ShardLink, indices: list[int]) -> None:
            async with turns[link.address.endpoint_id]:
                batch = [unique[index] for index in indices]
                got = await self._write(link, batch, [blocks[first[key]] for key in batch], ends)
            outcome.update(zip(batch, got, strict=True))

        await _all(put(link, indices) for link, indices in self._spread(unique, per_batch))
        for status in outcome.values():
            self.counters[f"write_{status.name.lower()}"] += 1
        stored = list(outcome.values()).count(WriteStatus.STORED)
        self.bytes_written += self.namespace.block_bytes * stored
        return [outcome[key] for key in keys]

    async def _write(
        self, link: ShardLink, keys: list[bytes], blocks: list[memoryview], ends: float
    ) -> list[WriteStatus]:
        call = link.call()
        done = False
        try:
            async with asyncio.timeout_at(ends):
                statuses = await self._put(call, keys, blocks, ends)
            done = True
            return statuses
        except (ShardUnavailable, TimeoutError) as error:
            self._note(link, "write", str(error) or "the deadline has passed")
            return [WriteStatus.NOT_STORED] * len(keys)
        finally:
            call.close()
            if not done and link.up:
                self._tell(link, wire.CancelWrite(call.op))

    async def _put(
        self, call: ShardCall, keys: list[bytes], blocks: list[memoryview], ends: float
    ) -> list[WriteStatus]:
        def checksums() -> bytes:
            return b"".join(map(block_checksum, keys, blocks))

        left = ends - asyncio.get_running_loop().time()
        question = wire.WriteOpen(
            call.op,
            self.namespace,
            pack_keys(keys),
            await self._hash(checksums, len(keys)),
            max(left, 0.001),
        )
        ready = await call.ask(question, wire.WriteReady)
        statuses = _statuses(WriteStatus, ready.statuses, keys)
        wanted = [i for i, status in enumerate(statuses) if status is WriteStatus.STORED]
        if not wanted:
            return statuses
        if len(ready.offsets) != len(keys) or any(ready.offsets[i] < 0 for i in wanted):
            raise ShardUnavailable("it gave no room for what it wants")
        lost: list[TransportError] = []

        async def push(i: int) -> None:
            try:
                await self._endpoint.write(
                    call.peer, ready.region_key, ready.offsets[i], [blocks[i]]
                )
            except TransportError as error:
                lost.append(error)

        await _all(map(push, wanted))
        if lost:
            raise ShardUnavailable(str(lost[0]))
        done = await call.ask(wire.WriteCommit(call.op), wire.WriteDone)
        return _statuses(WriteStatus, done.statuses, keys)

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────
    async def stat(self) -> StoreStat:
        """Of the shards that answer."""
        total = Counter[str]()

        async def ask(link: ShardLink) -> None:
            call = link.call()
            try:
                async with asyncio.timeout(self._match_deadline_s):
                    done = await call.ask(wire.StatRequest(call.op, self.namespace), wire.StatDone)
            except (ShardUnavailable, TimeoutError) as error:
                self._note(link, "stat", error)
                return
            finally:
                call.close()
            total.update(blocks=done.blocks, nbytes=done.nbytes)

        await _all(map(ask, self._links.values()))
        return StoreStat(total["blocks"], total["nbytes"])

    def _spread(
        self, keys: Sequence[bytes], per_message: int = wire.MAX_KEYS
    ) -> list[tuple[ShardLink, list[int]]]:
        """The messages that a call needs: a shard, and the indices of the keys that it is asked about."""
        most = min(per_message, wire.MAX_KEYS)
        return [
            (self._links[shard_id], indices[start : start + most])
            for shard_id, indices in self._placement.by_holder(keys).items()
            for start in range(0, len(indices), most)
        ]

    def _checked(self, keys: Sequence[bytes], views: Sequence[memoryview]) -> list[memoryview]:
        size = self.namespace.block_bytes
        if len(keys) != len(views) or any(view.nbytes != size for view in views):
            raise ValueError(
                f"the store takes one view of {size} bytes for each of {len(keys)} keys; "
                f"got {len(views)} of {sorted({view.nbytes for view in views})} bytes"
            )
        return [view.cast("B") for view in views]

    async def _hash(self, work: Callable[[], T], blocks: int) -> T:
        if blocks * self.namespace.block_bytes < _INLINE_BYTES:
            return work()
        return await self._threads.run(work)

    def _note(self, link: ShardLink, what: str, why: object) -> None:
        self.counters[f"{what}_calls_failed"] += 1
        log.info("a shard did not serve", call=what, shard=link.address.endpoint_id, why=str(why))


def _statuses(kind: type[Status], raw: bytes, keys: list[bytes]) -> list[Status]:
    """A shard's statuses; raises ShardUnavailable where they are none of `kind`, or not one per key."""
    try:
        statuses = [kind(status) for status in raw]
    except ValueError as error:
        raise ShardUnavailable(f"its answer is malformed: {error}") from error
    if len(statuses) != len(keys):
        raise ShardUnavailable(f"it answered for {len(statuses)} keys, not {len(keys)}")
    return statuses


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once, to their ends."""
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)
