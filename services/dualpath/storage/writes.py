"""A write: room in staging, one-sided writes of the client into it, then every block to the disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from dualpath.kvstore.api import WriteStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES
from dualpath.kvstore.disk import DiskStore
from dualpath.kvstore.putting import NewBlock
from dualpath.memory.arena import BufferRegion
from dualpath.storage.calls import answer
from dualpath.storage.staging import NoRoom, Staging
from dualpath.tasks import finish
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, TransportError
from dualpath.wire.codec import encode
from dualpath.wire.store import WRITE_BATCH_BYTES, Ping, WriteDone, WriteOpen, WriteReady
from dualpath.wire.types import Address

log = get_logger(__name__)

ROOM_WAIT_S = 2.0
"""A write that finds no room for so long is told NOT_STORED: blocks are a cache, waiting writers are not."""

PING_S = 1.0


@dataclass
class WriteCall:
    """One write of one client. Its room is free again when it ends: by its commit, by a cancel, by its
    deadline, or when the client has died."""

    peer: Address
    request: WriteOpen
    keys: list[bytes]
    deadline_s: float
    disk: DiskStore
    staging: Staging
    endpoint: Endpoint
    _committed: asyncio.Event = field(default_factory=asyncio.Event)
    _cancelled: bool = False

    def commit(self) -> None:
        self._committed.set()

    def cancel(self) -> None:
        self._cancelled = True
        self._committed.set()

    async def run(self) -> None:
        size = self.request.namespace.block_bytes
        present = self.disk.present(self.request.namespace, self.keys)
        statuses = bytearray(
            WriteStatus.EXISTS if there else WriteStatus.NOT_STORED for there in present
        )
        missing = [index for index, there in enumerate(present) if not there]
        wanted = missing[: max(1, WRITE_BATCH_BYTES // size)]
        if wanted:
            try:
                async with self.staging.hold(
                    size * len(wanted), wait_s=min(ROOM_WAIT_S, self.deadline_s)
                ) as room:
                    await self._through(room, wanted, statuses)
                return
            except NoRoom:
                self.disk.counters["write_no_room"] += len(wanted)
        await self._ready(0, [], statuses)

    async def _through(self, room: memoryview, wanted: list[int], statuses: bytearray) -> None:
        # The region is closed before the blocks are verified: what was verified is what is stored.
        if await self._receive(room, wanted, statuses):
            stored = await self.disk.write(
                self.request.namespace,
                [self._block(room, place, index) for place, index in enumerate(wanted)],
            )
            for index, status in zip(wanted, stored, strict=True):
                statuses[index] = status
            await answer(self.endpoint, self.peer, WriteDone(self.request.op, bytes(statuses)))

    async def _receive(self, room: memoryview, wanted: list[int], statuses: bytearray) -> bool:
        """Whether the client has written all wanted blocks into the room. Afterwards it cannot write."""
        key = self.endpoint.register(BufferRegion(room))
        try:
            return await self._ready(key, wanted, statuses) and await self._until_commit()
        finally:
            await finish(self.endpoint.revoke(key))

    async def _ready(self, key: int, wanted: list[int], statuses: bytearray) -> bool:
        size = self.request.namespace.block_bytes
        offsets, told = [-1] * len(self.keys), bytearray(statuses)
        for place, index in enumerate(wanted):
            offsets[index], told[index] = place * size, WriteStatus.STORED
        message = WriteReady(self.request.op, key, tuple(offsets), bytes(told))
        return await answer(self.endpoint, self.peer, message)

    async def _until_commit(self) -> bool:
        try:
            async with asyncio.timeout(self.deadline_s):
                while not self._committed.is_set():
                    try:
                        async with asyncio.timeout(PING_S):
                            await self._committed.wait()
                    except TimeoutError:
                        await self.endpoint.send(self.peer, encode(Ping(self.request.op)))
        except TimeoutError:
            log.info("a write was not committed in time", peer=self.peer.endpoint_id)
            return False
        except TransportError as error:
            log.info("a write lost its client", peer=self.peer.endpoint_id, error=str(error))
            return False
        return not self._cancelled

    def _block(self, room: memoryview, place: int, index: int) -> NewBlock:
        size, at = self.request.namespace.block_bytes, index * CHECKSUM_BYTES
        return NewBlock(
            self.keys[index],
            self.request.checksums[at : at + CHECKSUM_BYTES],
            self.request.depths[index],
            room[place * size : (place + 1) * size],
        )
