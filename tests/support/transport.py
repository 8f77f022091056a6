"""Endpoints of every transport on real sockets, and regions to write to."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from dualpath.lanes import Lane, PacedNic
from dualpath.memory.file_part import FilePart
from dualpath.memory.ranges import RangeAllocator
from dualpath.memory.shared import SharedMemory
from dualpath.transport import greeting, handshake, sockets
from dualpath.transport.api import Region, Source
from dualpath.transport.frames import Begin, FrameReader, Header, Kind
from dualpath.transport.link import Link
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.rdma.nixl import MODULE
from dualpath.transport.samehost import SameHostEndpoint
from dualpath.transport.stream import ByteStream, receive_into, send_all
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls
from dualpath.wire.codec import encode
from dualpath.wire.types import Address

SECRET = b"the cluster's secret"
DEADLINE_S = 1.0
"""Of links, for tests in which it runs out."""


class Bytes:
    """A region over one piece of memory; `imms` are what its writes carried."""

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)
        self.imms: list[int] = []

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return [memoryview(self.memory)[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        self.imms.append(imm)


class Scattered(Bytes):
    """The same bytes in pieces of `stride`, the odd ones from another array."""

    def __init__(self, nbytes: int, stride: int) -> None:
        super().__init__(nbytes)
        self.stride = stride
        self.other = bytearray(nbytes)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        pieces = []
        end = offset + nbytes
        while offset < end:
            number, within = divmod(offset, self.stride)
            size = min(self.stride - within, end - offset)
            home = self.other if number % 2 else self.memory
            pieces.append(memoryview(home)[offset : offset + size])
            offset += size
        return pieces

    def content(self) -> bytes:
        return b"".join(self.resolve(0, self.nbytes))


class PinningEndpoint(RdmaEndpoint):
    """Pins every region that it opens, so that peers write straight into it."""

    def register(self, region: Region) -> int:
        for name in ("memory", "other"):
            if (memory := getattr(region, name, None)) is not None:
                self.pin(memoryview(memory))
        return super().register(region)


class SharingEndpoint(SameHostEndpoint):
    """Writes out of shared memory, and spoils it as soon as it may."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        nbytes = 256 << 20
        self._memory = SharedMemory("test", nbytes)
        self._rooms = RangeAllocator(nbytes, nbytes)
        self.pin(self._memory.view, self._memory)

    async def write(
        self, peer: Address, key: int, offset: int, source: Source, **options: Any
    ) -> None:
        with ExitStack() as rooms:
            pieces = [
                piece
                if isinstance(piece, FilePart)
                else rooms.enter_context(self._room(memoryview(piece).cast("B")))
                for piece in source
            ]
            await super().write(peer, key, offset, pieces, **options)

    @contextlib.contextmanager
    def _room(self, piece: memoryview) -> Iterator[memoryview]:
        at = self._rooms.allocate(len(piece))
        assert at is not None, "a test writes more than this at a time"
        room = self._memory.view[at : at + len(piece)]
        try:
            room[:] = piece
            yield room
        finally:
            room[:] = SPOILED * len(piece)
            self._rooms.free(at)


SPOILED = b"\xee"

TRANSPORTS: dict[str, Callable[..., TcpEndpoint]] = {
    "tcp": TcpEndpoint,
    "shared": SharingEndpoint,
    "rdma": RdmaEndpoint,
    "rdma-pinned": PinningEndpoint,
}
needs_rdma = pytest.mark.skipif(
    importlib.util.find_spec(MODULE) is None,
    reason="NIXL is not installed: pip install 'dualpath[rdma]'",
)
_tcp, _shared, _rdma, _pinned = (
    pytest.param(name, marks=needs_rdma if name.startswith("rdma") else ()) for name in TRANSPORTS
)
EVERY_TRANSPORT = [_tcp, _rdma]
EVERY_WAY = [*EVERY_TRANSPORT, _pinned, _shared]
"""Also straight into pinned memory, and out of shared memory, where that differs."""

Received = list[tuple[Address, bytes]]


def hurry(endpoint: TcpEndpoint, deadline_s: float) -> None:
    """What its links wait for ends, or they are cut, within `deadline_s`. To make one may take as long as before: a
    busy machine needs more for that than tests want to wait."""
    endpoint._greeter = dataclasses.replace(endpoint._greeter, deadline_s=deadline_s)
    new_link = endpoint._new_link

    def new(*args: Any, **options: Any) -> Link:
        return new_link(*args, **{**options, "deadline_s": deadline_s})

    endpoint._new_link = new  # type: ignore[method-assign]


class Make(Protocol):
    async def __call__(
        self, endpoint_id: str, on_message: Any = None, **options: Any
    ) -> TcpEndpoint: ...


async def ignore(peer: Address, message: bytes) -> None:
    """A handler that takes everything."""


@pytest.fixture
def transport() -> str:
    """The name of the transport that `make` makes endpoints of."""
    return "tcp"


@pytest.fixture
async def make(transport: str) -> AsyncIterator[Make]:
    """Makes started endpoints that are closed at the end."""
    async with endpoints(transport) as build:
        yield build


@asynccontextmanager
async def endpoints(transport: str = "tcp") -> AsyncIterator[Make]:
    """What `make` is, for tests that run an event loop of their own."""
    async with AsyncExitStack() as stack:

        async def build(
            endpoint_id: str,
            on_message: Callable[[Address, bytes], Awaitable[None]] | None = None,
            link_deadline_s: float | None = None,
            **options: Any,
        ) -> TcpEndpoint:
            options = {
                "host": "127.0.0.1",
                "secret": SECRET,
                "nic": PacedNic(endpoint_id),
                **options,
            }
            endpoint = TRANSPORTS[transport](endpoint_id, **options)
            await endpoint.start(on_message or ignore)
            stack.push_async_callback(endpoint.close)
            if link_deadline_s is not None:
                hurry(endpoint, link_deadline_s)
            return endpoint

        yield build


PeerProcess = tuple[asyncio.subprocess.Process, Address, int]
"""An endpoint in a process of its own, its address, and the key of its region."""


@asynccontextmanager
async def peer_process(
    nbytes: int, transport: str, *, rate: float | None = None, link_deadline_s: float = 60.0
) -> AsyncIterator[PeerProcess]:
    """Runs transport_peer.py; the process may be stopped or killed meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.transport_peer",
        *map(str, (nbytes, transport, link_deadline_s, *([rate] if rate else []))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdin is not None
    *address, key = json.loads(await process.stdout.readline())
    yield process, Address(*address), key
    if process.returncode is None:
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
    async with asyncio.timeout(20):
        await process.wait()


def stop(process: asyncio.subprocess.Process) -> None:
    """With SIGSTOP, and until it stands still: the signal is only on its way when it has been sent."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


class RawPeer:
    """A peer that knows the secret, and says on the wire whatever a test makes it say."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.reader = FrameReader()

    @classmethod
    async def dial(
        cls,
        address: Address,
        *,
        endpoint_id: str = "raw",
        secret: bytes = SECRET,
        tls: Tls | None = None,
        **changes: Any,
    ) -> RawPeer:
        """Connect and prove the secret; `changes` are fields of the Hello. Raises handshake.Refusal."""
        sock = await sockets.connect(address.host, address.port, Lane.LOW)
        try:
            peer = cls(sock if tls is None else await tls.connect(sock, address.host))
            me = Address(endpoint_id, "1", "127.0.0.1", 9)
            mine = msgspec.structs.replace(
                handshake.hello(me, Lane.LOW, address, deadline_s=60.0), **changes
            )
            await peer._shake_hands(encode(mine), secret)
        except BaseException:
            sock.close()
            raise
        return peer

    async def _shake_hands(self, mine: bytes, secret: bytes) -> None:
        stream, reader = self.stream, self.reader
        await greeting.send_frame(stream, Kind.HELLO, mine)
        theirs = await greeting.receive_answer(stream, reader, Kind.HELLO)
        proofs = handshake.Proofs(secret, mine, theirs, greeting.binding(stream))
        await greeting.send_frame(stream, Kind.PROOF, encode(handshake.Proof(proofs.dialer)))
        welcome = await greeting.receive_answer(stream, reader, Kind.WELCOME)
        handshake.check_welcome(welcome, proofs.listener)
        reader.authenticated()

    async def say(self, header: Header, payload: bytes = b"") -> None:
        await self.send(header.pack() + payload)

    async def send(self, data: bytes) -> None:
        await send_all(self.stream, data)

    async def hear(self, kind: Kind) -> Header:
        """The next frame of `kind`; others are passed over. Raises ConnectionError at the end."""
        while True:
            count = await receive_into(self.stream, self.reader.buffers()[0])
            if not count:
                raise ConnectionResetError("closed")
            for event in self.reader.received(count):
                if isinstance(event, Begin):
                    if event.header.length:
                        self.reader.discard()
                elif event.header.kind is kind:
                    return event.header

    async def closed(self) -> None:
        """Return once the other side has closed the connection."""
        drain = memoryview(bytearray(1 << 16))
        with contextlib.suppress(ConnectionError):
            while await receive_into(self.stream, drain):
                pass

    def close(self) -> None:
        self.stream.close()


class Relay:
    """A network in which connections can be dropped silently: `swallow` forgets what they carry, and
    tells neither end. New connections work."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.connections = 0
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    @property
    def address(self) -> Address:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return msgspec.structs.replace(self.target, host="127.0.0.1", port=port)

    def swallow(self) -> None:
        self._generation += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        generation = self._generation
        back, forth = await asyncio.open_connection(self.target.host, self.target.port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, forth, generation))
                group.create_task(self._pump(back, writer, generation))
        finally:
            self._tasks.discard(task)
            writer.close()
            forth.close()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, generation: int
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if generation == self._generation:
                    target.write(data)
                    await target.drain()
        if generation == self._generation:
            target.close()
