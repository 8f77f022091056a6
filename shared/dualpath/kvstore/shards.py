"""The store over its shards: one namespace, spread by rendezvous hashing, reached over a node's SNIC endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dualpath.blocks.keys import pack_keys
from dualpath.kvstore.api import BlockStore, PrefixMatch, ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.placement import Placement
from dualpath.kvstore.repair import Repairs
from dualpath.kvstore.shard import ShardLink, ShardUnavailable, note
from dualpath.kvstore.shard_reads import ShardReads
from dualpath.kvstore.shard_writes import ShardWrites
from dualpath.kvstore.views import checked_views, first_places
from dualpath.tasks import Tasks, Threads
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.tracing import current
from dualpath.transport.api import Endpoint
from dualpath.wire import store as wire
from dualpath.wire.codec import MalformedMessage
from dualpath.wire.types import Address

log = get_logger(__name__)
T = TypeVar("T")
Status = TypeVar("Status", ReadStatus, WriteStatus)

MATCH_DEADLINE_S = 2.0
STALL_S = 2.0
"""Where blocks have copies, a shard that does not take a question for so long counts as lost."""

BATCHES_IN_FLIGHT = 2
"""Writes of one call to one shard: one is on the network while the other is on its way to the disk."""


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
        replicas: int = 1,
        match_deadline_s: float = MATCH_DEADLINE_S,
        run_bytes: int = wire.RUN_BYTES,
    ) -> None:
        """Each block is kept on `replicas` shards. Raises ValueError where `shards` is empty, names one twice, or
        are too few for that. Blocks come in writes of up to `run_bytes`, or singly: the smaller, the sooner is seen
        what has come over a slow NIC."""
        if not 1 <= replicas <= len(shards):
            raise ValueError(f"{len(shards)} shards cannot keep {replicas} copies of a block")
        self.namespace = wire.Namespace(fingerprint, block_bytes)
        self.counters: Counter[str] = Counter()
        """Blocks by what became of them: `read_found`, `read_absent`, …, `write_stored`, …"""
        self.bytes_read = 0
        self.bytes_written = 0
        self._placement = Placement([shard.endpoint_id for shard in shards])
        self._replicas = replicas
        self._tasks = Tasks()
        # With no other shard to turn to, nothing is won by giving up one that is only slow.
        stall_s = STALL_S if replicas > 1 else None
        self._links = {
            shard.endpoint_id: ShardLink(endpoint, shard, self._tasks, stall_s=stall_s)
            for shard in shards
        }
        self._asked: Counter[str] = Counter()
        """Blocks that reads wait for, by shard."""
        self._threads = Threads(2, "checksums")
        self._reads = ShardReads(endpoint, self.namespace, self._threads, run_bytes)
        self._writes = ShardWrites(endpoint, self.namespace, self._threads)
        self._repairs = Repairs(self._writes, self._tasks, self.counters)
        self._match_deadline_s = match_deadline_s

    @property
    def outstanding_blocks(self) -> int:
        """Blocks asked for by reads that have neither arrived nor failed yet."""
        return self._reads.outstanding_blocks

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
        answers: list[tuple[ShardLink, list[int], bytes]] = []

        async def ask(link: ShardLink, indices: list[int]) -> None:
            done = await self._match(link, [keys[index] for index in indices], lease_s)
            if done is None:
                return
            if done.lease:
                leases.append((link, done.lease))
            answers.append((link, indices, done.present))
            for index, there in zip(indices, done.present, strict=True):
                present[index] |= there

        try:
            await _all(ask(link, indices) for link, indices in self._copies(keys))
        except asyncio.CancelledError:
            self._end_leases(leases)
            raise
        if self._replicas > 1:
            self._compare(keys, present, answers)
        blocks = present.find(0)
        return PrefixMatch(
            len(keys) if blocks < 0 else blocks, _Lease(tuple(leases)) if leases else None
        )

    def _compare(
        self,
        keys: Sequence[bytes],
        present: bytearray,
        answers: Sequence[tuple[ShardLink, list[int], bytes]],
    ) -> None:
        """Remember which shards lack a copy of what another has."""
        for link, indices, there in answers:
            name = link.address.endpoint_id
            found = [keys[i] for i, has in zip(indices, there, strict=True) if has]
            self._repairs.told(name, found, there=True)
            if len(found) < len(indices):
                lacking = [
                    keys[i] for i, has in zip(indices, there, strict=True) if not has and present[i]
                ]
                self._repairs.told(name, lacking, there=False)

    async def _match(
        self, link: ShardLink, keys: list[bytes], lease_s: float
    ) -> wire.MatchDone | None:
        """What one shard says, or None where it does not."""
        call = link.call()
        try:
            async with link.unless_silent(self._match_deadline_s):
                question = wire.Match(
                    call.op, self.namespace, pack_keys(keys), lease_s, trace=current()
                )
                done = await call.ask(question, wire.MatchDone)
            if len(done.present) != len(keys):
                raise ShardUnavailable("it answered for another number of keys")
        except ShardUnavailable as error:
            note(link, "match", error)
            return None
        except TimeoutError:
            link.lost(f"it was silent for {self._match_deadline_s} s, and owed an answer")
            return None
        finally:
            call.close()
        return done

    async def release(self, match: PrefixMatch) -> None:
        """Returns at once: nobody need wait for it, and a lease that is not released ends by itself."""
        if isinstance(match.lease, _Lease):
            self._end_leases(match.lease.parts)

    def _end_leases(self, parts: Sequence[tuple[ShardLink, int]]) -> None:
        for link, lease in parts:
            if link.up:
                link.tell(wire.Release(lease))

    # ── read ───────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], *, deadline_s: float
    ) -> list[ReadStatus]:
        """Raises ValueError where a view is not of the block's size, or their number not that of the keys.

        A shard that turns out to lack a copy of what another gave, or has it damaged, gets it in the background."""
        into = checked_views(self.namespace.block_bytes, keys, into)
        statuses = [ReadStatus.ABSENT] * len(keys)
        holders = self._placement.holders(keys, self._replicas)
        ends = asyncio.get_running_loop().time() + deadline_s

        async def ask(link: ShardLink, indices: list[int]) -> None:
            name = link.address.endpoint_id
            self._asked[name] += len(indices)
            try:
                got = await self._reads.read(
                    link, [keys[i] for i in indices], [into[i] for i in indices], ends
                )
            finally:
                self._asked[name] -= len(indices)
            for index, status in zip(indices, got, strict=True):
                statuses[index] = _worse(statuses[index], status)
                if status in (ReadStatus.ABSENT, ReadStatus.CORRUPT):
                    self._repairs.told(name, [keys[index]], there=False)

        pending, tried = list(range(len(keys))), [set[str]() for _ in keys]
        for attempt in range(self._replicas):
            chosen = [self._shorter(holders[index], tried[index], keys[index]) for index in pending]
            for index, name in zip(pending, chosen, strict=True):
                tried[index].add(name)
            await _all(ask(link, indices) for link, indices in self._grouped(pending, chosen))
            pending = [index for index in pending if statuses[index] is not ReadStatus.FOUND]
            if not pending:
                break
            if attempt + 1 < self._replicas:
                self.counters["read_elsewhere"] += len(pending)
        if self._replicas > 1:
            self._repair(keys, into, statuses, holders)
        counts = Counter(statuses)
        for status, blocks in counts.items():
            self.counters[f"read_{status.name.lower()}"] += blocks
        self.bytes_read += self.namespace.block_bytes * counts[ReadStatus.FOUND]
        return statuses

    def _shorter(self, holders: Sequence[str], tried: set[str], key: bytes) -> str:
        """Of the shards that keep a block, one that answers and is not known to lack it, with the shorter queue; the
        first choice where equal."""
        left = [name for name in holders if name not in tried]
        if len(left) == 1:
            return left[0]
        return min(
            left,
            key=lambda name: (
                not self._links[name].up,
                self._repairs.lacks(name, key),
                self._asked[name],
            ),
        )

    def _repair(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[memoryview],
        statuses: Sequence[ReadStatus],
        holders: Sequence[Sequence[str]],
    ) -> None:
        for index, (key, status) in enumerate(zip(keys, statuses, strict=True)):
            if status is ReadStatus.FOUND:
                for name in holders[index]:
                    if self._repairs.lacks(name, key):
                        self._repairs.write(self._links[name], key, blocks[index], index)

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
        outcome: dict[bytes, set[WriteStatus]] = {key: set() for key in unique}
        ends = asyncio.get_running_loop().time() + deadline_s
        per_batch = max(1, wire.WRITE_BATCH_BYTES // self.namespace.block_bytes)
        turns = {name: asyncio.Semaphore(BATCHES_IN_FLIGHT) for name in self._links}

        async def put(link: ShardLink, indices: list[int]) -> None:
            async with turns[link.address.endpoint_id]:
                batch = [unique[index] for index in indices]
                places = [first[key] for key in batch]
                got = await self._writes.write(
                    link,
                    batch,
                    [blocks[place] for place in places],
                    [depth + place for place in places],
                    ends,
                )
            for key, status in zip(batch, got, strict=True):
                outcome[key].add(status)

        await _all(put(link, indices) for link, indices in self._copies(unique, per_batch))
        # One copy is enough: what a lost shard lacks it gets when the block is next read or written.
        best = {key: min(statuses) for key, statuses in outcome.items()}
        for status in best.values():
            self.counters[f"write_{status.name.lower()}"] += 1
        stored = list(best.values()).count(WriteStatus.STORED)
        self.bytes_written += self.namespace.block_bytes * stored
        return [best[key] for key in keys]

    def events(self) -> dict[str, int]:
        names = ("read_elsewhere", "copies_repaired", "copies_not_repaired")
        return {name: self.counters[name] for name in names} if self._replicas > 1 else {}

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
                note(link, "stat", error)
                return
            finally:
                call.close()
            total.update(blocks=done.blocks, nbytes=done.nbytes)

        await _all(map(ask, self._links.values()))
        return StoreStat(total["blocks"], total["nbytes"])

    def _copies(
        self, keys: Sequence[bytes], per_message: int = wire.MAX_KEYS
    ) -> list[tuple[ShardLink, list[int]]]:
        """The messages about every copy of some keys."""
        holders = self._placement.holders(keys, self._replicas)
        indices, copies = range(len(keys)), range(self._replicas)
        return [
            message
            for copy in copies
            for message in self._grouped(indices, [names[copy] for names in holders], per_message)
        ]

    def _grouped(
        self, indices: Sequence[int], names: Sequence[str], per_message: int = wire.MAX_KEYS
    ) -> list[tuple[ShardLink, list[int]]]:
        """The messages that a call needs: a shard, and the indices of the keys that it is asked about."""
        groups: dict[str, list[int]] = {}
        for index, name in zip(indices, names, strict=True):
            groups.setdefault(name, []).append(index)
        most = min(per_message, wire.MAX_KEYS)
        return [
            (self._links[name], group[start : start + most])
            for name, group in groups.items()
            for start in range(0, len(group), most)
        ]


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once, to their ends."""
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


_KINDS_OF_NO = (ReadStatus.FOUND, ReadStatus.ABSENT, ReadStatus.FAILED, ReadStatus.CORRUPT)


def _worse(before: ReadStatus, status: ReadStatus) -> ReadStatus:
    """What became of a block after another copy was asked for: found, or what tells most of why it was not."""
    if status is ReadStatus.FOUND:
        return status
    return max(before, status, key=_KINDS_OF_NO.index)
