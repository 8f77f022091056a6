"""What links read from and write to: a plain TCP connection, or an encrypted one (`tls`)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from dualpath.memory.file_part import FilePart, Piece


class ByteStream(Protocol):
    """A connected, non-blocking stream. The methods are those of socket.socket, and three more.

    Who waits for bytes must look at `unread` first, and who has nothing more to send must call `flush`
    until it is True: an encrypted stream holds bytes that the kernel has given, or not taken yet.
    """

    def fileno(self) -> int: ...

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:
        """Take bytes from the front of `buffers`; they are not read any more afterwards. Raises
        BlockingIOError where none can be taken now, OSError."""
        ...

    def send_pieces(self, pieces: Sequence[Piece], /) -> int:
        """`sendmsg` of a frame, whose payload is all memory, or all parts of files: those are read until the peer has
        them."""
        ...

    def recvmsg_into(self, buffers: Iterable[memoryview], /) -> tuple[int, Any, int, Any]:
        """Fill `buffers` from the front; 0 bytes at the end of the stream. Raises BlockingIOError, OSError."""
        ...

    def recv(self, bufsize: int, flags: int, /) -> bytes:
        """Of the connection below, for MSG_PEEK only: no bytes where the peer has closed it."""
        ...

    def flush(self) -> bool:
        """Give the kernel what the stream itself holds; True once that is nothing. Raises OSError."""
        ...

    def unread(self) -> bool:
        """Bytes of the peer may wait in here, of which the kernel will not tell."""
        ...

    def setsockopt(self, level: int, optname: int, value: bytes, /) -> None: ...

    def close(self) -> None: ...


class PlainStream(socket.socket):
    """The connection itself; it holds nothing."""

    @classmethod
    def of(cls, sock: socket.socket) -> PlainStream:
        """Takes `sock` over."""
        stream = cls(sock.family, sock.type, sock.proto, fileno=sock.detach())
        stream.setblocking(False)
        return stream

    def send_pieces(self, pieces: Sequence[Piece], /) -> int:
        first = pieces[0]
        if isinstance(first, FilePart):
            sent = os.sendfile(self.fileno(), first.fd, first.offset, first.nbytes)
            if not sent:
                raise OSError(errno.EIO, "a file ends before what is sent of it")
            return sent
        if isinstance(pieces[-1], FilePart):
            # A header; it is to leave with what follows.
            return self.sendmsg([first], (), socket.MSG_MORE)
        return self.sendmsg(cast("Sequence[memoryview]", pieces))

    def flush(self) -> bool:
        return True

    def unread(self) -> bool:
        return False


async def send_all(stream: ByteStream, data: bytes) -> None:
    """For small things outside of a link's hot path. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[stream.sendmsg([view]) :]
        except BlockingIOError:
            await writable(stream)
    while not stream.flush():
        await writable(stream)


async def receive_into(stream: ByteStream, buffer: memoryview) -> int:
    """At least one byte, or 0 at the end of the stream. Raises OSError."""
    while True:
        try:
            return stream.recvmsg_into([buffer])[0]
        except BlockingIOError:
            await readable(stream)


async def readable(stream: ByteStream | socket.socket) -> None:
    """Until the kernel has bytes of the peer. Nobody else may wait for that meanwhile."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(stream, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(stream)


async def writable(stream: ByteStream | socket.socket) -> None:
    """Until the kernel takes bytes. Nobody else may wait for that meanwhile."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(stream, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(stream)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
