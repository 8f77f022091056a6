"""A read: blocks go from disk through staging into the client's region, several at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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

BLOCKS_IN_FLIGHT = 4


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
        indices = iter([index for index, there in enumerate(present) if there])
        async with asyncio.TaskGroup() as group:
            for _ in range(min(BLOCKS_IN_FLIGHT, sum(present))):
                group.create_task(self._blocks(indices))
        self.disk.touch(self.request.namespace, self.keys)
        await answer(
            self.endpoint,
            self.peer,
            ReadDone(self.request.op, bytes(self._statuses), bytes(self._checksums)),
        )

    def _over(self) -> bool:
        return self._stopped or asyncio.get_running_loop().time() >= self._ends

    async def _blocks(self, indices: Iterator[int]) -> None:
        for index in indices:
            async with self.turn:
                if self._over():
                    return
                nbytes = self.disk.read_bytes(self.request.namespace)
                async with self.staging.hold(nbytes) as buffer:
                    if self._over():
                        return
                    await self._block(index, buffer)

    async def _block(self, index: int, buffer: memoryview) -> None:
        request = self.request
        status, checksum = await self.disk.read(request.namespace, self.keys[index], buffer)
        block = buffer[: request.namespace.block_bytes]
        if status is ReadStatus.FOUND and not await self._sent(index, block):
            return
        self._statuses[index] = status
        at = index * CHECKSUM_BYTES
        self._checksums[at : at + CHECKSUM_BYTES] = checksum

    async def _sent(self, index: int, block: memoryview) -> bool:
        """Whether the block has landed at the client; where not, the call is over."""
        if self._stopped:
            return False
        request = self.request
        try:
            await self.endpoint.write(
                self.peer, request.region_key, request.offsets[index], [block], imm=index
            )
        except Revoked:
            self._stopped = True
            return False
        except TransportError as error:
            if not self._stopped:
                log.info("a read lost its client", peer=self.peer.endpoint_id, error=str(error))
            self._stopped = True
            return False
        return True
