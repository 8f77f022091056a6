"""What this side of a link has under way: writes and messages that the peer has not acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from dualpath.lanes.api import Lane, Nic, Priority
from dualpath.memory.file_part import Piece
from dualpath.tasks import finish
from dualpath.transport.frames import (
    END,
    HEADER_BYTES,
    MAX_WRITE_BYTES,
    MESSAGE_WINDOW,
    Header,
    Kind,
    MalformedFrame,
    Status,
    split,
)
from dualpath.transport.outbox import Outbox, Parcel

_LARGE_BYTES = 1 << 20
"""After a chunk of so many bytes others have their turn."""


class Operation:
    """A write or message. `started`: bytes of it may have left; `complete`: its last frame is on the way."""

    __slots__ = (
        "_answer",
        "_answered",
        "_interrupted",
        "_task",
        "ack",
        "complete",
        "pulled",
        "pulling",
        "pulls",
        "started",
    )

    def __init__(self) -> None:
        self.ack: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()
        self.started = False
        self.complete = False
        self.pulls = 0
        """Frames that have left, or are about to, and say where the peer is to read in this process's memory."""
        self.pulled = 0
        """Those of them that the peer has read."""
        self.pulling = False
        """The frame that was put last is of that kind."""
        self._answered = False
        self._answer: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupted = False

    def settle(self, status: Status | None) -> None:
        """The peer's answer, or None where the link was lost."""
        self._answered = True
        self._wake()
        if not self.ack.done():
            self.ack.set_result(status)
        task, self._task = self._task, None
        # Running itself, it lost the socket just now, and sees that the answer is there.
        if task is not None and task is not asyncio.current_task():
            self._interrupted = True
            task.cancel()

    def put_out(self, parcel: Parcel) -> None:
        """The frame that was put last has left, or will not."""
        self.started |= parcel.started
        self.pulls -= self.pulling and not parcel.started

    @property
    def reading(self) -> bool:
        """The peer may be reading memory of this process: it has answered neither all such frames, nor the write."""
        return not self._answered and self.pulled < self.pulls

    def read(self) -> None:
        """The peer has read what one frame told it to."""
        self.pulled += 1
        self._wake()

    async def read_out(self) -> None:
        """Until the peer reads no more, or the link is lost."""
        while self.reading:
            self._answer = asyncio.get_running_loop().create_future()
            await self._answer

    def _wake(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    async def conclude(self, sending: Coroutine[Any, Any, None]) -> Status | None:
        """Send, and wait for the answer; one that comes early ends the sending, as asyncio.timeout does."""
        task = asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()
        self._task = task
        try:
            await sending
            self._task = None
            return await self.ack
        except asyncio.CancelledError:
            # Cancelled by others too: that goes before.
            if not self._interrupted or task is None or task.uncancel() > cancelling:
                raise
            return self.ack.result()
        finally:
            self._task = None


class Outcome:
    """How an operation ended. `status` None: the link was lost; `started`: after bytes may have left."""

    __slots__ = ("started", "status")

    def __init__(self, status: Status | None, started: bool) -> None:
        self.status = status
        self.started = started


class Sender:
    """Cuts writes into frames, asks the NIC for each, and matches acknowledgements with operations.

    Frames of concurrent writes take turns. A write that is cancelled just stops: without its last frame
    it never counts at the peer, which remembers nothing of it. A frame that is partly sent goes on to its end.
    """

    def __init__(self, outbox: Outbox, nic: Nic, lane: Lane) -> None:
        self._outbox = outbox
        self._nic = nic
        self._lane = lane
        self._last_op = 0
        self._writes: dict[int, Operation] = {}
        self._messages: dict[int, Operation] = {}
        self._window = asyncio.Semaphore(MESSAGE_WINDOW)
        self._closed = False

    @property
    def under_way(self) -> int:
        return len(self._writes) + len(self._messages)

    @property
    def owed(self) -> bool:
        """The peer has, or will soon have, all of something that it has not answered."""
        return any(
            operation.complete
            for operations in (self._writes, self._messages)
            for operation in operations.values()
        )

    async def write(self, key: int, offset: int, source: Sequence[Piece], imm: int) -> Outcome:
        if self._closed:
            return Outcome(None, False)
        op, operation = self._new()
        self._writes[op] = operation
        try:
            parcel = self._put_whole(op, operation, key, offset, source, imm)
            if parcel is None:
                status = await operation.conclude(
                    self._send_write(op, operation, key, offset, source, imm)
                )
            else:
                try:
                    status = await operation.ack
                finally:
                    self._outbox.withdraw(parcel)
                    operation.put_out(parcel)
        finally:
            try:
                if operation.reading:
                    await finish(operation.read_out())
            finally:
                self._writes.pop(op, None)
                self._ended(op)
        return Outcome(status, operation.started)

    async def send(self, message: bytes) -> Outcome:
        if self._closed:
            return Outcome(None, False)
        op, operation = self._new()
        self._messages[op] = operation
        try:
            status = await operation.conclude(self._send_message(op, operation, message))
        finally:
            # One that has left keeps its place in the window until the peer answers.
            if not operation.started:
                self._messages.pop(op, None)
        return Outcome(status, operation.started)

    def acknowledged(self, header: Header) -> None:
        """The peer answered. Answers to what has ended here already are ignored.

        Raises MalformedFrame for an answer to something that was never asked.
        """
        try:
            status = Status(header.code)
        except ValueError:
            raise MalformedFrame(f"acknowledgements of status {header.code} do not exist") from None
        operations = self._messages if header.kind is Kind.MESSAGE_ACK else self._writes
        operation = operations.get(header.op)
        if operation is None:
            if not 0 < header.op <= self._last_op:
                raise MalformedFrame(f"operation {header.op} was acknowledged but never begun")
            return
        if header.kind is Kind.PULLED:
            operation.read()
            return
        if status is Status.OK and not operation.complete:
            raise MalformedFrame(f"operation {header.op} was acknowledged before it was sent")
        if header.kind is Kind.MESSAGE_ACK:
            del operations[header.op]
            self._window.release()
        operation.settle(status)

    def close(self) -> None:
        """The link is lost: everything under way ends."""
        self._closed = True
        for operation in [*self._writes.values(), *self._messages.values()]:
            operation.settle(None)
        self._writes.clear()
        self._messages.clear()

    def _new(self) -> tuple[int, Operation]:
        self._last_op += 1
        return self._last_op, Operation()

    def _put_whole(
        self,
        op: int,
        operation: Operation,
        key: int,
        offset: int,
        source: Sequence[Piece],
        imm: int,
    ) -> Parcel | None:
        """A write of one chunk that need not wait, as most are, takes one wake-up of its task: that for the answer.
        None where it is another kind of write."""
        sizes = list(map(len, source))
        nbytes = sum(sizes)
        if 0 in sizes or not self._admits(nbytes) or not self._nic.try_send(self._lane, nbytes):
            return None
        operation.complete = True
        return self._put(Header(Kind.WRITE, END, nbytes, op, key, offset, imm), operation, source)

    async def _send_write(
        self,
        op: int,
        operation: Operation,
        key: int,
        offset: int,
        source: Sequence[Piece],
        imm: int,
    ) -> None:
        chunks = split(source, min(self._nic.quantum_bytes, MAX_WRITE_BYTES))
        for number, pieces in enumerate(chunks, 1):
            length = sum(map(len, pieces))
            await self._admitted()
            await self._nic.send(self._lane, length)
            last = number == len(chunks)
            operation.complete = last
            code, data = (END, imm) if last else (0, 0)
            header = Header(Kind.WRITE, code, length, op, key, offset, data)
            parcel = self._put(header, operation, pieces)
            try:
                if not parcel.done:
                    await self._outbox.sent(parcel)
            finally:
                operation.put_out(parcel)
            if operation.ack.done():
                return
            if not last and length >= _LARGE_BYTES:
                # A socket that takes all of it at once, as its peer reads as fast, lets nobody else run.
                await asyncio.sleep(0)
            offset += length

    def _put(self, header: Header, operation: Operation, pieces: Sequence[Piece]) -> Parcel:
        self._nic.charge(self._lane, "tx", HEADER_BYTES)
        views, operation.pulling = self._frame(header, pieces)
        operation.pulls += operation.pulling
        return self._outbox.put(views, Priority.BULK)

    def _admits(self, nbytes: int) -> bool:
        """A write of so many bytes may be put on its way as one chunk, without waiting for anything but its NIC."""
        return nbytes <= MAX_WRITE_BYTES

    async def _admitted(self) -> None:
        """Wait until another chunk may be put on its way; at once, where the socket holds back what is too much."""

    def _ended(self, op: int) -> None:
        """A write is over, and nothing of it is read any more."""

    def _frame(self, header: Header, pieces: Sequence[Piece]) -> tuple[list[Piece], bool]:
        """The views that leave for a chunk of a write; and whether the peer reads `pieces` when they have left."""
        return [memoryview(header.pack()), *pieces], False

    async def _send_message(self, op: int, operation: Operation, message: bytes) -> None:
        lane, quantum = self._lane, self._nic.quantum_bytes
        left = len(message)
        await self._window.acquire()
        try:
            while left > quantum:
                await self._nic.send(lane, quantum, Priority.MESSAGE)
                left -= quantum
            await self._nic.send(lane, left, Priority.MESSAGE)
            header = Header(Kind.MESSAGE, 0, len(message), op)
            operation.complete = True
            self._nic.charge(lane, "tx", HEADER_BYTES)
            views: list[Piece] = [memoryview(header.pack())]
            if message:
                views.append(memoryview(message))
            parcel = self._outbox.put(views, Priority.MESSAGE)
            try:
                await self._outbox.sent(parcel)
            finally:
                operation.started = parcel.started
        finally:
            if not operation.started:
                self._window.release()
