"""A read: blocks go from the page cache, or through staging, into the client's region, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES
from dualpath.kvstore.disk import DiskStore
from dualpath.kvstore.reading import StoredBlock
from dualpath.storage.calls import answer
from dualpath.storage.staging import Staging
from dualpath.tasks import together
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, Revoked, TransportError
from dualpath.wire.store import RUN_BYTES, Read, ReadDone, pack_run
from dualpath.wire.types import Address

log = get_logger(__name__)

RUNS_IN_FLIGHT = 4

FETCH_BYTES = 1 << 20
"""Blocks are read from the disk, and sent, so many bytes at a time, or one by one where they are larger: a turn in a
thread costs more than reading a small block."""

MOST_BLOCKS = 256
"""Of a run, however small they are: to look each up takes the event loop several microseconds."""

_Numbered = tuple[int, StoredBlock]
"""A block, and its number in the read."""


@dataclass
class ReadCall:
    """One read of one client. It ends by its last block, a cancel, its deadline, or the loss of the client;
    blocks that it has not got to then have FAILED."""

    peer: Address
    request: Read
    keys: list[bytes]
    deadline_s: float
    disk: DiskStore
    staging: Staging
    endpoint: Endpoint
    turn: asyncio.Semaphore
    """Shared by the reads of one client, so that a slow one cannot take all that there is."""
    in_place: bool
    """Whether blocks are sent from the page cache, and not copied to staging."""
    _stopped: bool = False
    _found: list[int] = field(default_factory=list)
    """Blocks that were there when the call began; those before `_next` have been sent, or are about to be."""
    _next: int = 0
    _statuses: bytearray = field(default_factory=bytearray)
    _checksums: bytearray = field(default_factory=bytearray)

    def cancel(self) -> None:
        """Begin no further block. Those on their way end by themselves: the client's revoke stops them."""
        self._stopped = True

    async def run(self) -> None:
        self._ends = asyncio.get_running_loop().time() + self.deadline_s
        present = self.disk.present(self.request.namespace, self.keys)
        self._statuses = bytearray(
            ReadStatus.FAILED if there else ReadStatus.ABSENT for there in present
        )
        self._checksums = bytearray(CHECKSUM_BYTES * len(self.keys))
        self._found = [index for index, there in enumerate(present) if there]
        await together([self._some() for _ in range(min(RUNS_IN_FLIGHT, len(self._found)))])
        self.disk.touch(self.request.namespace, self.keys)
        await answer(
            self.endpoint,
            self.peer,
            ReadDone(self.request.op, bytes(self._statuses), bytes(self._checksums)),
        )

    def _over(self) -> bool:
        return self._stopped or asyncio.get_running_loop().time() >= self._ends

    async def _some(self) -> None:
        """Send runs until there is none left, or the call is over."""
        while self._next < len(self._found):
            async with self.turn:
                if self._over() or self._next == len(self._found):
                    return
                run, blocks_of_run = self._take()
                async with blocks_of_run as blocks:
                    await self._send(run, blocks)

    def _take(self) -> tuple[list[int], AbstractAsyncContextManager[list[StoredBlock]]]:
        """The next run and its blocks: all that can leave at once, or so much that the first leave soon."""
        namespace, begin = self.request.namespace, self._next
        run_bytes = min(self.request.run_bytes, RUN_BYTES)
        fetched = self._blocks_in(min(run_bytes, FETCH_BYTES))
        if not self.in_place:
            run = self._found[begin : begin + fetched]
            self._next += len(run)
            return run, self._copied(run)
        most = self._found[begin : begin + self._blocks_in(run_bytes)]
        ready = self.disk.cached(namespace, self._keys_of(most))
        run = most[: ready or fetched]
        self._next += len(run)
        ahead = begin + RUNS_IN_FLIGHT * fetched
        coming = () if ready else self._keys_of(self._found[ahead : ahead + fetched])
        return run, self.disk.in_place(namespace, self._keys_of(run), coming, cached=ready > 0)

    def _blocks_in(self, nbytes: int) -> int:
        """Blocks of a run; a small read is several all the same, so that what has come is verified meanwhile."""
        several = -(-len(self._found) // RUNS_IN_FLIGHT)
        return max(1, min(nbytes // self.request.namespace.block_bytes, several, MOST_BLOCKS))

    @asynccontextmanager
    async def _copied(self, run: Sequence[int]) -> AsyncIterator[list[StoredBlock]]:
        """Copies of a run's blocks in staging."""
        namespace = self.request.namespace
        size = self.disk.read_bytes(namespace)
        async with self.staging.hold(size * len(run)) as room:
            if self._over():
                yield [StoredBlock(ReadStatus.FAILED)] * len(run)
                return
            into = [room[at * size : (at + 1) * size] for at in range(len(run))]
            found = await self.disk.read_many(namespace, self._keys_of(run), into)
            yield [
                StoredBlock(status, checksum, buffer[: namespace.block_bytes])
                for buffer, (status, checksum) in zip(into, found, strict=True)
            ]

    def _keys_of(self, run: Sequence[int]) -> list[bytes]:
        return [self.keys[index] for index in run]

    async def _send(self, run: Sequence[int], blocks: Sequence[StoredBlock]) -> None:
        found: list[tuple[int, StoredBlock]] = []
        for index, block in zip(run, blocks, strict=True):
            if block.status is ReadStatus.FOUND:
                found.append((index, block))
            else:
                self._statuses[index] = block.status
        await together([self._write(part) for part in self._neighbours(found)])

    def _neighbours(self, found: Sequence[_Numbered]) -> list[list[_Numbered]]:
        """Cut a run into parts, each of which lies in one piece in the client's region."""
        offsets, step = self.request.offsets, self.request.namespace.block_bytes
        parts: list[list[_Numbered]] = []
        for index, block in found:
            last = parts[-1][-1][0] if parts else -1
            if parts and index == last + 1 and offsets[index] == offsets[last] + step:
                parts[-1].append((index, block))
            else:
                parts.append([(index, block)])
        return parts

    async def _write(self, part: Sequence[_Numbered]) -> None:
        """Send neighbours; found is what has landed at the client. Where that is gone, the call is over."""
        if self._over():
            return
        request, first = self.request, part[0][0]
        try:
            await self.endpoint.write(
                self.peer,
                request.region_key,
                request.offsets[first],
                [block.data for _, block in part],
                imm=pack_run(first, len(part)),
            )
        except Revoked:
            self._stopped = True
        except TransportError as error:
            if not self._stopped:
                log.info("a read lost its client", peer=self.peer.endpoint_id, error=str(error))
            self._stopped = True
        else:
            for index, block in part:
                at = index * CHECKSUM_BYTES
                self._statuses[index] = ReadStatus.FOUND
                self._checksums[at : at + CHECKSUM_BYTES] = block.checksum
