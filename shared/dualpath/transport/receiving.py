"""The receiving half of a link: from the socket straight into regions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from dualpath.lanes.api import Lane, Nic
from dualpath.transport.api import Followed
from dualpath.transport.frames import (
    BUSY,
    END,
    HEADER_BYTES,
    TRANSFER,
    Begin,
    Event,
    FrameReader,
    Header,
    Kind,
    MalformedFrame,
    Status,
)
from dualpath.transport.inbox import Inbox
from dualpath.transport.outbox import Outbox
from dualpath.transport.regions import Closed, Regions
from dualpath.transport.sending import Sender
from dualpath.transport.stream import ByteStream, PlainStream

_BYTES_PER_TURN = 1 << 20
"""What is received before the event loop sees to others."""
_LEAST_PER_TURN = 4096
"""Counted for a receipt of less: a flood of small frames takes time too."""
_WAKE_BYTES = 512 * 1024
"""So much of a payload, or its rest, is worth waking for."""

_ANSWERS = {Kind.WRITE_ACK, Kind.MESSAGE_ACK, Kind.PULLED}
_HELD = {Kind.MESSAGE, Kind.PULL, *TRANSFER}
"""Kinds whose payload is held here."""
_CHARGED = {Kind.WRITE, Kind.MESSAGE, Kind.PULL}
"""Kinds whose payload this side's NIC takes in."""


class PeerGone(Exception):
    """The connection ended; the text says how."""


class Receiver:
    """Reads frames and acts on them. Payload of a write lands in its region's memory and nowhere before.

    A socket is only read on the event loop, never in another thread. So `drop`, which points the rest of a
    frame elsewhere, is enough for a region's memory to be free at once.
    """

    def __init__(
        self,
        sock: ByteStream,
        reader: FrameReader,
        *,
        lane: Lane,
        nic: Nic,
        regions: Regions,
        inbox: Inbox,
        sender: Sender,
        outbox: Outbox,
        on_heard: Callable[[], None],
        on_transfer: Callable[[Header, bytes], None],
        on_pull: Callable[[Header, bytes], int],
    ) -> None:
        self._sock = sock
        self._reader = reader
        self._lane = lane
        self._nic = nic
        self._regions = regions
        self._inbox = inbox
        self._sender = sender
        self._outbox = outbox
        self._on_heard = on_heard
        self._on_transfer = on_transfer
        self._on_pull = on_pull
        self._loop = asyncio.get_running_loop()
        self._message = bytearray()
        self._moved = 0
        """Payload bytes of the frame that ended last, wherever they lay."""
        self._coming: asyncio.Future[list[Event]] | None = None
        """Where this side waits for something to come."""
        self._watched = False
        self._closed = False
        self._heard_at = self._loop.time()
        self._turn = 0
        self._low_water = 1
        self._frames = 0
        self.busy = False
        """Something that has come waits for this side's NIC."""
        self.held_ups = 0
        """So often the peer said that it is busy."""

    @property
    def silent_s(self) -> float:
        """How long the peer has said nothing while this side listened."""
        return 0.0 if self._coming is None else self._loop.time() - self._heard_at

    @property
    def signs(self) -> tuple[int, int]:
        """They change with whatever comes, but for an ALIVE whose sender is not busy."""
        return self._frames, self._reader.left

    def forgive(self) -> None:
        """Count the silence from now on."""
        self._heard_at = self._loop.time()

    def listen(self) -> None:
        """Take what has come, although it is less than the socket was told to wake for."""
        if self._coming is not None:
            self._serve()

    def peek(self) -> None:
        """Notice an end of the connection that the event loop has not come round to. Raises PeerGone."""
        try:
            gone = not self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise PeerGone(f"receiving failed: {error.strerror or error}") from error
        if gone:
            raise PeerGone("the peer closed it")

    def drop(self, key: int) -> None:
        """From now on nothing that arrives for `key` is written to its region."""
        current = self._reader.current
        if current is not None and current.kind is Kind.WRITE and current.key == key:
            self._reader.discard()

    def close(self) -> None:
        """To be called before the socket is closed. What an encrypted stream still holds is not taken any more."""
        self._closed = True
        self._unwatch()

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._sock)

    async def run(self) -> None:
        """Until cancelled. Raises PeerGone, MalformedFrame."""
        while True:
            events = self._take() or await self._wait()
            while events:
                await self._end(events[0].header)
                events = self._act(events[1:])
            if self._turn >= _BYTES_PER_TURN:
                self._turn = 0
                await asyncio.sleep(0)

    def _take(self) -> list[Event]:
        """Receive, and act on what comes. Returns the first end that has to wait for this side's NIC, and what came
        behind it; nothing where the socket has no more, or others are to have their turn."""
        if self._closed:
            raise PeerGone("this side closed it")
        reader, sock = self._reader, self._sock
        while self._turn < _BYTES_PER_TURN:
            try:
                count = sock.recvmsg_into(reader.buffers())[0]
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise PeerGone(f"receiving failed: {error.strerror or error}") from error
            if not count:
                raise PeerGone("the peer closed it")
            self._turn += max(count, _LEAST_PER_TURN)
            self._heard_at = self._loop.time()
            self._on_heard()
            events = reader.received(count)
            if ends := self._act(events):
                return ends
            if not events and (current := reader.current) and current.kind is Kind.WRITE:
                self._follow(current)
            begun = events and reader.left
            if not begun and count < _WAKE_BYTES and not sock.unread():
                break  # Most likely that was all; to ask would cost as much as to be told.
        self._turn = 0
        return []

    def _act(self, events: list[Event]) -> list[Event]:
        """Act on `events` up to an end that has to wait for this side's NIC; returns that and the rest."""
        for index, event in enumerate(events):
            if isinstance(event, Begin):
                self._begin(event.header)
            elif not self._ends_at_once(event.header):
                return events[index:]
        return []

    async def _wait(self) -> list[Event]:
        """What `_take` returns next. The event loop takes all that need not wait without waking this task."""
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._sock, self._serve)
        self._heard_at = self._loop.time()
        self._coming = self._loop.create_future()
        self._expect_more()
        try:
            return await self._coming
        finally:
            self._coming = None

    def _expect_more(self) -> None:
        """Of a payload, wake for WAKE_BYTES or its rest: each time costs as much as copying tens of kilobytes."""
        if self._sock.unread():
            self._loop.call_soon(self._serve)
        if not isinstance(self._sock, PlainStream):
            return  # What an encrypted stream holds already is missing from what is to come.
        nbytes = min(self._reader.left, _WAKE_BYTES) or 1
        if nbytes != self._low_water:
            self._low_water = nbytes
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)

    def _serve(self) -> None:
        """The socket has something."""
        coming = self._coming
        if coming is None:
            # Nobody reads for now. To watch on from one wait to the next saves most of its cost.
            self._unwatch()
        elif not coming.done():
            try:
                events = self._take()
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is the task's
                coming.set_exception(error)
                coming.exception()  # Taken, even if who waits for it is cancelled in this very turn.
                return
            if events:
                coming.set_result(events)
            else:
                self._expect_more()

    def _begin(self, header: Header) -> None:
        if header.kind is Kind.WRITE:
            self._begin_write(header)
        elif header.kind in _HELD:
            self._message = bytearray(header.length)
            if header.length:
                self._reader.into([memoryview(self._message)])

    def _begin_write(self, header: Header) -> None:
        pieces = self.target(header, header.length)
        if pieces is None:
            self._reader.discard()
        elif header.length:
            self._reader.into(pieces)

    def _follow(self, header: Header) -> None:
        """More of a write's frame has come, and not all. Keys are never opened again: bytes of one that is open now
        went into its region."""
        region = self._regions.find(header.key)
        if isinstance(region, Followed):
            region.on_bytes(header.offset, header.length - self._reader.left)

    def target(self, header: Header, nbytes: int) -> Sequence[memoryview] | None:
        """Where `nbytes` of a write go; None where its region is revoked. Raises MalformedFrame."""
        region = self._regions.find(header.key)
        if region is Closed.REVOKED:
            return None
        if region is Closed.NEVER_ISSUED:
            self._answer(header, Status.MALFORMED)
            raise MalformedFrame(f"a write for key {header.key}, which was never issued")
        if header.offset + nbytes > region.nbytes:
            self._answer(header, Status.MALFORMED)
            raise MalformedFrame(
                f"a write to [{header.offset}, {header.offset + nbytes}) "
                f"of a region of {region.nbytes} bytes"
            )
        return region.resolve(header.offset, nbytes) if nbytes else ()

    def _count(self, header: Header) -> None:
        self._nic.charge(self._lane, "rx", HEADER_BYTES)
        if header.kind is not Kind.ALIVE:
            self._frames += 1
        elif header.code == BUSY:
            self._frames += 1
            self.held_ups += 1

    def _ends_at_once(self, header: Header) -> bool:
        """Act on the end of a frame whose payload need not wait for this side's NIC; False where it has to."""
        self._count(header)
        kind = header.kind
        self._moved = header.length
        if kind in _ANSWERS:
            self._sender.acknowledged(header)
        elif kind in TRANSFER:
            self._on_transfer(header, bytes(self._message))
        elif kind in _CHARGED:
            if kind is Kind.PULL:
                self._moved = self._on_pull(header, bytes(self._message))
                self._turn += self._moved
            if not self._nic.try_receive(self._lane, self._moved):
                return False
            self._end_payload(header)
        return True

    async def _end(self, header: Header) -> None:
        """What `_ends_at_once` has begun."""
        await self._charge(self._moved)
        self._end_payload(header)

    def _end_payload(self, header: Header) -> None:
        if header.kind is Kind.MESSAGE:
            self._inbox.put(header.op, bytes(self._message))
        else:
            self._end_write(header)

    def _end_write(self, header: Header) -> None:
        # Keys are never opened again: one that is open now was open for every frame of the write.
        region = self._regions.find(header.key)
        if isinstance(region, Closed):
            # For each frame, so that the sender stops early; it ignores all but the first.
            self._answer(header, Status.REVOKED)
        elif header.code == END:
            region.on_write(header.imm)
            self._answer(header, Status.OK)
        elif header.kind is Kind.PULL:
            self._nic.charge(self._lane, "tx", HEADER_BYTES)
            self._outbox.control(Header(Kind.PULLED, op=header.op).pack())

    async def _charge(self, nbytes: int) -> None:
        quantum = self._nic.quantum_bytes
        self.busy = True
        while nbytes > quantum:
            await self._nic.receive(self._lane, quantum)
            nbytes -= quantum
        await self._nic.receive(self._lane, nbytes)
        self.busy = False

    def _answer(self, header: Header, status: Status) -> None:
        self._nic.charge(self._lane, "tx", HEADER_BYTES)
        self._outbox.control(Header(Kind.WRITE_ACK, status, op=header.op).pack())
