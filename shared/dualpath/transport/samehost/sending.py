"""The writer's half: a frame whose payload lies in shared memory says where."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.file_part import Piece
from dualpath.transport.frames import Header, Kind
from dualpath.transport.outbox import Outbox
from dualpath.transport.samehost.segments import Offered
from dualpath.transport.sending import Operation, Sender

MIN_PULL_BYTES = 16 * 1024
"""What is smaller goes inside the link: to say where it lies takes as long."""
WINDOW_BYTES = 8 << 20
"""What a peer may be told of that it has not read, of one link: what it takes slowly waits here, where messages
overtake it, as it does where a socket is full."""


class PullingSender(Sender):
    """`attach` returns how many segments the peer has mapped, once that is known."""

    def __init__(
        self,
        outbox: Outbox,
        nic: Nic,
        lane: Lane,
        *,
        offered: Offered,
        attach: Callable[[], Awaitable[int]],
    ) -> None:
        super().__init__(outbox, nic, lane)
        self._offered = offered
        self._attach = attach
        self._segments: int | None = None
        self._unread: dict[int, deque[int]] = {}
        """Bytes of the frames that the peer has not answered, by write."""
        self._unread_bytes = 0
        self._room = asyncio.Event()

    @property
    def owed(self) -> bool:
        return super().owed or self.reading

    @property
    def reading(self) -> bool:
        """The peer may be reading memory of this process."""
        return any(operation.reading for operation in self._writes.values())

    def acknowledged(self, header: Header) -> None:
        super().acknowledged(header)
        if header.kind is Kind.PULLED and (frames := self._unread.get(header.op)):
            self._forget(frames.popleft())

    def _admits(self, nbytes: int) -> bool:
        told = self._segments is not None or not self._offered.fds or nbytes < MIN_PULL_BYTES
        return told and self._unread_bytes < WINDOW_BYTES and super()._admits(nbytes)

    async def _admitted(self) -> None:
        while self._unread_bytes >= WINDOW_BYTES:
            self._room.clear()
            await self._room.wait()

    def _ended(self, op: int) -> None:
        if op in self._unread:
            self._forget(sum(self._unread.pop(op)))

    def _forget(self, nbytes: int) -> None:
        self._unread_bytes -= nbytes
        self._room.set()

    async def _send_write(
        self,
        op: int,
        operation: Operation,
        key: int,
        offset: int,
        source: Sequence[Piece],
        imm: int,
    ) -> None:
        if self._segments is None and self._offered.fds and sum(map(len, source)) >= MIN_PULL_BYTES:
            self._segments = await self._attach()
        await super()._send_write(op, operation, key, offset, source, imm)

    def _frame(self, header: Header, pieces: Sequence[Piece]) -> tuple[list[Piece], bool]:
        if not self._segments or header.length < MIN_PULL_BYTES:
            return super()._frame(header, pieces)
        where = self._offered.pack(cast("Sequence[memoryview]", pieces), self._segments)
        if where is None:
            return super()._frame(header, pieces)
        pull = header._replace(kind=Kind.PULL, length=len(where))
        self._unread.setdefault(header.op, deque()).append(header.length)
        self._unread_bytes += header.length
        return [memoryview(pull.pack() + where)], True
