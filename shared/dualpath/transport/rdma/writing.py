"""The writer's half of a link: small writes go as over TCP, the others beside the link."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.file_part import Piece
from dualpath.tasks import finish
from dualpath.transport.frames import Header, Kind, MalformedFrame
from dualpath.transport.outbox import Outbox
from dualpath.transport.rdma.asked import WRITE_WINDOW
from dualpath.transport.rdma.extents import (
    Extent,
    take_extents,
    take_views,
    total,
    unpack,
)
from dualpath.transport.rdma.memory import ROOM_BYTES, ROOMS_PER_LINK, Pinned, Room, Rooms
from dualpath.transport.rdma.rail import Flight, Rail
from dualpath.transport.sending import Operation, Sender

EAGER_BYTES = 8192
"""Writes up to this go inside the link: to ask first would take longer."""
FLIGHTS = 4
"""Chunks that one write has under way: enough to keep a NIC busy, few enough for the arbiter to decide."""


class _Asked:
    """A write that waits for its next GRANT."""

    __slots__ = ("granted", "left", "waits")

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        """What has not been granted yet."""
        self.granted: asyncio.Future[list[Extent]] = asyncio.get_running_loop().create_future()
        self.waits = True


class RdmaSender(Sender):
    """`attach` returns the link's rail once the two agents know each other; it raises LinkError."""

    def __init__(
        self,
        outbox: Outbox,
        nic: Nic,
        lane: Lane,
        *,
        pinned: Pinned,
        rooms: Rooms,
        attach: Callable[[], Awaitable[Rail]],
    ) -> None:
        super().__init__(outbox, nic, lane)
        self._pinned = pinned
        self._rooms = rooms
        self._attach = attach
        self._asked: dict[int, _Asked] = {}
        self._asking = asyncio.Semaphore(WRITE_WINDOW)
        self._room_turns = asyncio.Semaphore(ROOMS_PER_LINK)

    @property
    def owed(self) -> bool:
        return super().owed or any(asked.waits for asked in self._asked.values())

    def granted(self, header: Header, payload: bytes) -> None:
        """The peer says where the next bytes of a write go. One that has ended here, or is cancelled, is passed
        over: its STOPPED is on the way. Raises MalformedFrame."""
        where = unpack(payload)
        asked = self._asked.get(header.op)
        if asked is None:
            if not 0 < header.op <= self._last_op:
                raise MalformedFrame(f"operation {header.op} was granted but never asked for")
            return
        if asked.granted.cancelled():
            # As the write is: its task has not yet run to say so.
            return
        asked.left -= total(where)
        if asked.granted.done() or asked.left < 0:
            raise MalformedFrame(f"operation {header.op} was granted more than it asked for")
        asked.waits = False
        asked.granted.set_result(where)

    def _admits(self, nbytes: int) -> bool:
        return nbytes <= EAGER_BYTES and super()._admits(nbytes)

    async def _send_write(
        self,
        op: int,
        operation: Operation,
        key: int,
        offset: int,
        source: Sequence[Piece],
        imm: int,
    ) -> None:
        nbytes = sum(map(len, source))
        if nbytes <= EAGER_BYTES:
            await super()._send_write(op, operation, key, offset, source, imm)
            return
        rail = await self._attach()
        async with self._asking:
            asked = self._asked[op] = _Asked(nbytes)
            self._outbox.control(Header(Kind.ASK, op=op, key=key, offset=offset, imm=nbytes).pack())
            flights: deque[Flight] = deque()
            try:
                views = deque(cast("memoryview", view) for view in source if view)
                while not operation.ack.done():
                    where = deque(await asked.granted)
                    asked.granted = asyncio.get_running_loop().create_future()
                    await self._fly(rail, operation, views, where, flights)
                    while flights:
                        await flights[0].over
                        flights.popleft()
                    if operation.ack.done():
                        return
                    operation.complete = not views
                    asked.waits = not operation.complete
                    self._outbox.control(Header(Kind.LANDED, op=op, imm=imm).pack())
                    if not views:
                        return
            finally:
                del self._asked[op]
                if not operation.complete:
                    # Whatever happens, `source` is not given back while a NIC reads it.
                    try:
                        await _ended(flights)
                    finally:
                        # Cancelled here and revoked there, it may be interrupted once more, but is over.
                        self._outbox.control(Header(Kind.STOPPED, op=op).pack())

    async def _fly(
        self,
        rail: Rail,
        operation: Operation,
        views: deque[memoryview],
        where: deque[Extent],
        flights: deque[Flight],
    ) -> None:
        """Begin to write the first of `views` to all of `where`."""
        chunk_bytes = min(self._nic.quantum_bytes, ROOM_BYTES)
        while where:
            target = take_extents(where, min(total(where), chunk_bytes))
            nbytes = total(target)
            pieces = take_views(views, nbytes)
            local = self._pinned.extents(pieces)
            if local is None:
                flight = await self._from_room(rail, operation, pieces, target)
            else:
                await self._nic.send(self._lane, nbytes)
                operation.started = True
                flight = rail.post(local, target)
            flights.append(flight)
            if len(flights) >= FLIGHTS:
                await flights[0].over
                flights.popleft()

    async def _from_room(
        self,
        rail: Rail,
        operation: Operation,
        pieces: Sequence[memoryview],
        target: Sequence[Extent],
    ) -> Flight:
        """Copy the pieces to where the NIC can read them; the room is free when the flight is over."""
        nbytes = total(target)
        await self._room_turns.acquire()
        room: Room | None = None
        try:
            room = await self._rooms.take()
            await self._nic.send(self._lane, nbytes)
            start = 0
            for piece in pieces:
                room.view[start : start + len(piece)] = piece
                start += len(piece)
            operation.started = True
            flight = rail.post([(room.address, nbytes)], target)
        except BaseException:
            self._leave(room)
            raise
        flight.over.add_done_callback(lambda _: self._leave(room))
        return flight

    def _leave(self, room: Room | None) -> None:
        if room is not None:
            room.give_back()
        self._room_turns.release()


async def _ended(flights: Sequence[Flight]) -> None:
    """Wait until none is under way, even when cancelled; the cancellation is raised afterwards."""
    if under_way := [flight.over for flight in flights if not flight.over.done()]:
        await finish(asyncio.wait(under_way))
