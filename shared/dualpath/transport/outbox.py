"""The sending half of a link: whole frames onto a non-blocking stream, one after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from dualpath.lanes.api import Priority
from dualpath.memory.file_part import Piece
from dualpath.transport.stream import ByteStream

_IOV_MAX = 1000
_BYTES_PER_TURN = 1 << 20
"""What goes out before the event loop sees to others."""
MAX_CONTROL_BYTES = 4 << 20
"""Acknowledgements that may wait. A peer that lets more pile up asks for much and reads nothing."""


class Parcel:
    """One frame on its way out, or several control frames. `started`: some of its bytes may have left."""

    __slots__ = ("control", "done", "started", "views", "waiter")

    def __init__(self, views: list[Piece], *, control: bool = False) -> None:
        self.views = views
        self.control = control
        self.started = False
        self.done = False
        self.waiter: asyncio.Future[None] | None = None

    def advance(self, nbytes: int) -> bool:
        """`nbytes` have left; True when that was all."""
        index = 0
        views = self.views
        for view in views:
            if nbytes < len(view):
                break
            nbytes -= len(view)
            index += 1
        del views[:index]
        if nbytes:
            views[0] = views[0][nbytes:]
        return not views


class Outbox:
    """Frames leave whole and never interleave: control frames first, then messages, then bulk, each FIFO.

    Driven by the caller while the socket takes bytes, and by the event loop once it does not.
    `on_error` hears of a socket that failed, once; it must call `close`.
    """

    def __init__(self, sock: ByteStream, on_error: Callable[[str], None]) -> None:
        self._sock = sock
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._control = bytearray()
        self._queues: dict[Priority, deque[Parcel]] = {p: deque() for p in Priority}
        self._current: Parcel | None = None
        self._armed = False
        self._soon: asyncio.Handle | None = None
        """Set where control frames wait for the end of this turn only."""
        self._closed = False
        self.taken_bytes = 0
        """By the socket, since start; without control frames."""

    @property
    def idle(self) -> bool:
        """Everything that was put in has been taken by the socket."""
        return self._current is None and not self._control and not any(self._queues.values())

    def control(self, frame: bytes) -> None:
        """Send a small frame ahead of all that waits; nobody waits for it. Those of one turn of the event loop leave
        together: to send, and to be woken for, each alone would cost more than what they acknowledge."""
        if self._closed:
            return
        self._control += frame
        if len(self._control) > MAX_CONTROL_BYTES:
            self._on_error("it does not read the acknowledgements of what it sends")
        elif not self._armed and self._soon is None:
            self._soon = self._loop.call_soon(self._flush)

    def put(self, views: list[Piece], priority: Priority) -> Parcel:
        """Queue a frame (non-empty pieces of format "B"), and send it now where the socket takes it."""
        parcel = Parcel(views)
        if not self._closed:
            self._queues[priority].append(parcel)
            if not self._armed:
                self._flush()
        return parcel

    async def sent(self, parcel: Parcel) -> bool:
        """Wait until the socket has taken the frame; False where the outbox was closed first.

        Cancelled before the frame started, it is withdrawn; later, the rest of it is copied and sent all
        the same, so that the stream stays whole. Either way the views are not read any more afterwards.
        """
        if parcel.done or self._closed:
            return parcel.done
        parcel.waiter = self._loop.create_future()
        try:
            await parcel.waiter
        except asyncio.CancelledError:
            self.withdraw(parcel)
            raise
        return parcel.done

    def withdraw(self, parcel: Parcel) -> None:
        """Where it has not left: not at all, or its rest as a copy. Its views are not read any more afterwards."""
        if not parcel.done and not self._closed:
            self._withdraw(parcel)

    def close(self, *, graceful: bool = False) -> None:
        """Forget all that waits; if `graceful`, after what the socket takes at once. The caller closes the socket."""
        if graceful and not self._closed:
            self._flush()
        self._closed = True
        self._disarm()
        if self._soon is not None:
            self._soon.cancel()
        waiting: Iterable[Parcel] = [p for queue in self._queues.values() for p in queue]
        for parcel in [*waiting, *([self._current] if self._current else [])]:
            parcel.views = []
            if parcel.waiter is not None and not parcel.waiter.done():
                parcel.waiter.set_result(None)
        self._control.clear()
        self._current = None
        for queue in self._queues.values():
            queue.clear()

    def _withdraw(self, parcel: Parcel) -> None:
        if parcel is self._current and parcel.started:
            try:
                parcel.views = [memoryview(b"".join(map(bytes, parcel.views)))]
            except OSError as error:
                self._on_error(f"sending failed: {error.strerror or error}")
            return
        for queue in self._queues.values():
            if parcel in queue:
                queue.remove(parcel)
        if parcel is self._current:
            self._current = None

    def _flush(self) -> None:
        self._soon = None
        budget = _BYTES_PER_TURN
        while not self._closed:
            parcel = self._current or self._next()
            try:
                if parcel is None:
                    if self._sock.flush():
                        self._disarm()
                    else:
                        self._arm()
                    return
                sent = self._sock.send_pieces(parcel.views[:_IOV_MAX])
            except (BlockingIOError, InterruptedError):
                self._arm()
                return
            except OSError as error:
                self._on_error(f"sending failed: {error.strerror or error}")
                return
            parcel.started = True
            if not parcel.control:
                self.taken_bytes += sent
            if parcel.advance(sent):
                self._current = None
                parcel.done = True
                if parcel.waiter is not None and not parcel.waiter.done():
                    parcel.waiter.set_result(None)
            budget -= sent
            if budget <= 0 and not self.idle:
                self._arm()
                return

    def _next(self) -> Parcel | None:
        if self._control:
            self._current = Parcel([memoryview(bytes(self._control))], control=True)
            self._control.clear()
            return self._current
        for queue in self._queues.values():
            if queue:
                self._current = queue.popleft()
                return self._current
        return None

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._sock, self._flush)

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.remove_writer(self._sock)
