"""A read: blocks go from disk through staging into the client's region, several at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES
from dualpath.kvstore.disk import DiskStore
from dualpath.storage.calls import answer
from dualpath.storage.staging import Staging
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, Revoked, TransportError
from dualpath.wire.store import Read, ReadDone
from dualpath.wire.types import Address

log = get_logger(__name__)

RUNS_IN_FLIGHT = 4

RUN_BYTES = 1 << 20
"""Blocks are read from the disk so many bytes at a time, or one by one where they are larger: a turn in a thread
costs more than reading a small block."""


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
    """Shared by the reads of one client, so that a slow one cannot take all of the staging."""
    _stopped: bool = False
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
        self._slot_bytes = self.disk.read_bytes(self.request.namespace)
        found = [index for index, there in enumerate(present) if there]
        per_run = max(1, min(RUN_BYTES // self._slot_bytes, -(-len(found) // RUNS_IN_FLIGHT)))
        runs = iter([found[at : at + per_run] for at in range(0, len(found), per_run)])
        async with asyncio.TaskGroup() as group:
            for _ in range(min(RUNS_IN_FLIGHT, len(found))):
                group.create_task(self._runs(runs))
        self.disk.touch(self.request.namespace, self.keys)
        await answer(
            self.endpoint,
            self.peer,
            ReadDone(self.request.op, bytes(self._statuses), bytes(self._checksums)),
        )

    def _over(self) -> bool:
        return self._stopped or asyncio.get_running_loop().time() >= self._ends

    async def _runs(self, runs: Iterator[list[int]]) -> None:
        for run in runs:
            async with self.turn:
                if self._over():
                    return
                async with self.staging.hold(self._slot_bytes * len(run)) as room:
                    if self._over():
                        return
                    await self._run(run, room)

    async def _run(self, run: Sequence[int], room: memoryview) -> None:
        size, block_bytes = self._slot_bytes, self.request.namespace.block_bytes
        into = [room[at * size : (at + 1) * size] for at in range(len(run))]
        keys = [self.keys[index] for index in run]
        outcomes = await self.disk.read_many(self.request.namespace, keys, into)
        sends = []
        for index, buffer, (status, checksum) in zip(run, into, outcomes, strict=True):
            if status is ReadStatus.FOUND:
                sends.append(self._send(index, buffer[:block_bytes], checksum))
            else:
                self._statuses[index] = status
        if len(sends) == 1:
            await sends[0]
            return
        async with asyncio.TaskGroup() as group:
            for send in sends:
                group.create_task(send)

    async def _send(self, index: int, block: memoryview, checksum: bytes) -> None:
        """Send a block; found is what has landed at the client. Where that is gone, the call is over."""
        if self._stopped:
            return
        request = self.request
        try:
            await self.endpoint.write(
                self.peer, request.region_key, request.offsets[index], [block], imm=index
            )
        except Revoked:
            self._stopped = True
        except TransportError as error:
            if not self._stopped:
                log.info("a read lost its client", peer=self.peer.endpoint_id, error=str(error))
            self._stopped = True
        else:
            self._statuses[index] = ReadStatus.FOUND
            self._checksums[index * CHECKSUM_BYTES : (index + 1) * CHECKSUM_BYTES] = checksum
