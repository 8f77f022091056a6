"""A network that damages bytes: proxies before endpoints, which flip one byte of one frame in transit."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dualpath.transport.frames import HEADER_BYTES, Header, Kind

_HEADER = struct.Struct("<HBBIQQQQ")


@dataclass
class Flip:
    """Flip one bit in the middle of the payload of the first write of `sender` that is not among its first
    `after` ones. `done` is that frame's header."""

    sender: str
    after: int = 0
    done: Header | None = None

    def damage(self, sender: str, header: Header, payload: bytearray) -> None:
        if self.done is not None or sender != self.sender:
            return
        if header.kind is not Kind.WRITE or not payload:
            return
        if self.after:
            self.after -= 1
            return
        payload[len(payload) // 2] ^= 1
        self.done = header


@asynccontextmanager
async def proxy(listener: str, port: int, dialer: str, flip: Flip) -> AsyncIterator[int]:
    """The port of a proxy before `listener`'s `port`; whoever connects counts as `dialer`."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                ways = {
                    asyncio.create_task(_forward(reader, far_writer, dialer, flip)),
                    asyncio.create_task(_forward(far_reader, writer, listener, flip)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                far_writer.close()
        finally:
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: str, flip: Flip
) -> None:
    """Pass frames on until one side closes."""
    while True:
        try:
            head = await reader.readexactly(HEADER_BYTES)
            _, kind, *fields = _HEADER.unpack(head)
            header = Header(Kind(kind), *fields)
            payload = bytearray(await reader.readexactly(header.length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        flip.damage(sender, header, payload)
        writer.write(head + payload)
        try:
            await writer.drain()
        except ConnectionError:
            return
