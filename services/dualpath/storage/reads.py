"""A read: blocks go from the page cache, or through staging, into the client's region, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
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
from dualpath.wire.store import Read, ReadDone, pack_run
from dualpath.wire.types import Address

log = get_logger(__name__)

RUNS_IN_FLIGHT = 4

RUN_BYTES = 1 << 20
"""Blocks are read from the disk, and sent, so many bytes at a time, or one by one where they are larger: a turn in a
thread, and a write to the client, cost more than reading a small block."""

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
    _runs: list[list[int]] = field(default_factory=list)
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
        found = [index for index, there in enumerate(present) if there]
        size = self.request.namespace.block_bytes
        per_run = max(1, min(RUN_BYTES // size, -(-len(found) // RUNS_IN_FLIGHT)))
        self._runs = [found[at : at + per_run] for at in range(0, len(found), per_run)]
        numbers = iter(range(len(self._runs)))
        await together([self._some(numbers) for _ in range(min(RUNS_IN_FLIGHT, len(self._runs)))])
        self.disk.touch(self.request.namespace, self.keys)
        await answer(
            self.endpoint,
            self.peer,
            ReadDone(self.request.op, bytes(self._statuses), bytes(self._checksums)),
        )

    def _over(self) -> bool:
        return self._stopped or asyncio.get_running_loop().time() >= self._ends

    async def _some(self, numbers: Iterator[int]) -> None:
        """Send runs until there is none left, or the call is over."""
        blocks_of = self._in_place if self.in_place else self._copied
        for number in numbers:
            async with self.turn:
                if self._over():
                    return
                async with blocks_of(number) as blocks:
                    await self._send(self._runs[number], blocks)

    @asynccontextmanager
    async def _in_place(self, number: int) -> AsyncIterator[list[StoredBlock]]:
        """A run's blocks where the page cache has them."""
        ahead = self._runs[number + RUNS_IN_FLIGHT : number + RUNS_IN_FLIGHT + 1]
        async with self.disk.in_place(
            self.request.namespace,
            self._keys_of(self._runs[number]),
            self._keys_of(ahead[0]) if ahead else (),
        ) as blocks:
            yield blocks

    @asynccontextmanager
    async def _copied(self, number: int) -> AsyncIterator[list[StoredBlock]]:
        """Copies of a run's blocks in staging."""
        namespace, run = self.request.namespace, self._runs[number]
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
