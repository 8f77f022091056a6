"""The target's half of a link: writes that the peer has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from dualpath.lanes.api import Lane, Nic
from dualpath.transport.api import Region
from dualpath.transport.frames import Header, Kind, MalformedFrame, Status
from dualpath.transport.rdma import extents
from dualpath.transport.rdma.extents import MAX_EXTENTS, Extent
from dualpath.transport.rdma.memory import ROOM_BYTES, ROOMS_PER_LINK, Pinned, Rooms
from dualpath.transport.rdma.rail import Rail
from dualpath.transport.regions import Closed, Regions

WRITE_WINDOW = 256
"""Writes that a peer may have asked for on one link and neither landed nor stopped; more is a fault."""
MAX_WRITES = 16 * WRITE_WINDOW
"""With those that have landed, and wait for a slow NIC; more is a fault too."""
MIN_PIECE_BYTES = 4096
"""Where pieces are smaller on average, to write them one by one takes longer than to copy them once more."""


class _Write:
    """One of them. `said`: the writer's next LANDED (True) or its last word that nothing comes (False)."""

    __slots__ = ("direct", "ended", "granted", "key", "nbytes", "offset", "op", "said")

    def __init__(self, op: int, key: int, offset: int, nbytes: int) -> None:
        loop = asyncio.get_running_loop()
        self.op = op
        self.key = key
        self.offset = offset
        self.nbytes = nbytes
        self.granted = 0
        self.direct = False
        self.said: asyncio.Future[tuple[bool, int]] | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once the peer cannot write for it any more."""


class AskedWrites:
    """Grants where the payload goes: straight into the region where its memory is pinned, else into a room, from
    which it is copied. So only a write into pinned memory has to be waited for when its region is revoked.
    """

    def __init__(
        self,
        *,
        regions: Regions,
        pinned: Pinned,
        rooms: Rooms,
        nic: Nic,
        lane: Lane,
        control: Callable[[bytes], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._regions = regions
        self._pinned = pinned
        self._rooms = rooms
        self._nic = nic
        self._lane = lane
        self._control = control
        self._spawn = spawn
        self._turns = asyncio.Semaphore(ROOMS_PER_LINK)
        self._writes: dict[int, _Write] = {}
        self._open_ops: set[int] = set()
        """Of those, what the peer has not said its last word about."""
        self._last_op = 0
        self._held_up = 0
        self._rail: Rail | None = None

    @property
    def busy(self) -> bool:
        """Writes wait for a room, or for this side's NIC."""
        return self._held_up > 0

    def serve(self, rail: Rail) -> None:
        """The two agents know each other."""
        self._rail = rail

    # ── what the peer says ─────────────────────────────────────────────────────────────────────────
    def asked(self, header: Header) -> None:
        """Raises MalformedFrame."""
        op, nbytes = header.op, header.imm
        if self._rail is None or op in self._writes or not nbytes:
            raise MalformedFrame(f"write {op} was asked for out of order")
        if len(self._open_ops) >= WRITE_WINDOW or len(self._writes) >= MAX_WRITES:
            raise MalformedFrame("too many writes were asked for at a time")
        self._last_op = max(self._last_op, op)
        region = self._regions.find(header.key)
        if region is Closed.REVOKED:
            self._answer(op, Status.REVOKED)
            return
        if region is Closed.NEVER_ISSUED:
            self._answer(op, Status.MALFORMED)
            raise MalformedFrame(f"a write for key {header.key}, which was never issued")
        if header.offset + nbytes > region.nbytes:
            self._answer(op, Status.MALFORMED)
            raise MalformedFrame(
                f"a write to [{header.offset}, {header.offset + nbytes}) "
                f"of a region of {region.nbytes} bytes"
            )
        write = self._writes[op] = _Write(op, header.key, header.offset, nbytes)
        self._open_ops.add(op)
        self._spawn(self._serve(write, region, self._rail))

    def landed(self, header: Header) -> None:
        """Raises MalformedFrame."""
        write = self._find(header)
        if write is None:
            return
        if write.said is None or write.said.done():
            raise MalformedFrame(f"write {header.op} landed before it was granted")
        if write.granted == write.nbytes:
            self._open_ops.discard(write.op)
        write.said.set_result((True, header.imm))

    def stopped(self, header: Header) -> None:
        """Raises MalformedFrame."""
        write = self._find(header)
        self._open_ops.discard(header.op)
        if write is not None:
            self._stop(write)

    def _find(self, header: Header) -> _Write | None:
        """None for a write that has been answered already, as those of revoked regions are."""
        write = self._writes.get(header.op)
        if write is None and not 0 < header.op <= self._last_op:
            raise MalformedFrame(f"write {header.op} was never asked for")
        return write

    @staticmethod
    def _stop(write: _Write) -> None:
        if not write.ended.done():
            write.ended.set_result(None)
        if write.said is not None and not write.said.done():
            write.said.set_result((False, 0))

    # ── revoking ───────────────────────────────────────────────────────────────────────────────────
    def drop(self, key: int) -> None:
        """The region is revoked: tell whoever writes into it."""
        for write in self._writes.values():
            if write.key == key:
                self._answer(write.op, Status.REVOKED)

    def writing(self, key: int) -> list[asyncio.Future[None]]:
        """One for each write that may still change the region's memory, done when it cannot any more."""
        return [w.ended for w in self._writes.values() if w.key == key and w.direct]

    def close(self) -> None:
        """To be called once the rail is closed."""
        for write in self._writes.values():
            self._stop(write)

    # ── one write ──────────────────────────────────────────────────────────────────────────────────
    async def _serve(self, write: _Write, region: Region, rail: Rail) -> None:
        try:
            pieces = self._direct(region.resolve(write.offset, write.nbytes))
            if pieces is not None:
                imm = await self._into_region(write, rail, pieces)
            else:
                imm = await self._through_rooms(write, rail, region)
            if imm is not None:
                # Keys are never opened again: one that is open now was open all the time.
                if self._open(write):
                    region.on_write(imm)
                    self._answer(write.op, Status.OK)
                else:
                    self._answer(write.op, Status.REVOKED)
        finally:
            self._stop(write)
            self._open_ops.discard(write.op)
            del self._writes[write.op]

    def _direct(self, pieces: Sequence[memoryview]) -> list[Extent] | None:
        found = self._pinned.extents(pieces)
        if found is None or len(found) > MAX_EXTENTS:
            return None
        return found if extents.total(found) >= MIN_PIECE_BYTES * len(found) else None

    async def _into_region(self, write: _Write, rail: Rail, pieces: list[Extent]) -> int | None:
        if write.ended.done() or not self._open(write):
            return None
        write.direct = True
        imm = await self._granted(write, rail, pieces)
        if not write.ended.done():
            write.ended.set_result(None)
        if imm is not None:
            await self._charge(write.nbytes)
        return imm

    async def _through_rooms(self, write: _Write, rail: Rail, region: Region) -> int | None:
        imm: int | None = None
        for start in range(0, write.nbytes, ROOM_BYTES):
            nbytes = min(ROOM_BYTES, write.nbytes - start)
            async with AsyncExitStack() as turn:
                with self._holding_up():
                    await turn.enter_async_context(self._turns)
                    room = await self._rooms.take()
                try:
                    if write.ended.done() or not self._open(write):
                        return None
                    imm = await self._granted(write, rail, [(room.address, nbytes)])
                    if imm is None:
                        return None
                    await self._charge(nbytes)
                    if self._open(write):
                        _copy(room.view, region.resolve(write.offset + start, nbytes))
                finally:
                    room.give_back()
        return imm

    async def _granted(self, write: _Write, rail: Rail, pieces: list[Extent]) -> int | None:
        """Let the peer write there, and wait until it says that it has, or will not: None."""
        write.said = asyncio.get_running_loop().create_future()
        write.granted += extents.total(pieces)
        payload = extents.pack(pieces)
        self._control(Header(Kind.GRANT, length=len(payload), op=write.op).pack() + payload)
        rail.expect(1)
        try:
            landed, imm = await write.said
        finally:
            rail.expect(-1)
        return imm if landed else None

    def _open(self, write: _Write) -> bool:
        return not isinstance(self._regions.find(write.key), Closed)

    async def _charge(self, nbytes: int) -> None:
        quantum = self._nic.quantum_bytes
        with self._holding_up():
            for start in range(0, nbytes, quantum):
                await self._nic.receive(self._lane, min(quantum, nbytes - start))

    @contextmanager
    def _holding_up(self) -> Iterator[None]:
        self._held_up += 1
        try:
            yield
        finally:
            self._held_up -= 1

    def _answer(self, op: int, status: Status) -> None:
        self._control(Header(Kind.WRITE_ACK, status, op=op).pack())


def _copy(source: memoryview, pieces: Sequence[memoryview]) -> None:
    start = 0
    for piece in pieces:
        piece[:] = source[start : start + len(piece)]
        start += len(piece)
