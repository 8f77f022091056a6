from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from tests.support.transport import Bytes
from tests.support.wait import until

from dualpath.lanes import Lane, Nic, PacedNic
from dualpath.transport.api import Followed
from dualpath.transport.frames import END, FrameReader, Header, Kind
from dualpath.transport.inbox import Inbox
from dualpath.transport.outbox import Outbox
from dualpath.transport.receiving import PeerGone, Receiver
from dualpath.transport.regions import Regions
from dualpath.transport.sending import Sender
from dualpath.transport.stream import ByteStream, PlainStream
from dualpath.transport.tls import TlsStream
from dualpath.wire.types import Address


class Held(TlsStream):
    """An encrypted stream that has been closed, and holds a frame of the peer all the same."""

    def __init__(self) -> None:
        self._left = Header(Kind.ALIVE).pack()

    def fileno(self) -> int:
        return -1

    def recvmsg_into(self, buffers: Iterable[memoryview], /) -> tuple[int, list[object], int, None]:
        if not self._left:
            raise BlockingIOError
        (buffer, *_) = buffers
        buffer[:] = self._left
        self._left = b""
        return len(buffer), [], 0, None

    def unread(self) -> bool:
        return bool(self._left)


def receiver_of(
    stream: ByteStream,
    regions: Regions,
    nic: Nic | None = None,
    on_message: Callable[[int, bytes], None] | None = None,
) -> Receiver:
    """Where nothing but writes is to come, unless somebody takes messages."""

    async def ignore(peer: Address, message: bytes) -> None:
        raise AssertionError("nothing was to come")

    reader, nic = FrameReader(), nic or PacedNic("nic")
    reader.authenticated()
    outbox = Outbox(stream, pytest.fail)
    inbox = Inbox(
        Address("peer", "1", "h", 1),
        ignore,
        outbox.control,
        lambda error: pytest.fail(str(error)),
    )
    if on_message is not None:
        inbox.put = on_message  # type: ignore[method-assign, assignment]
    return Receiver(
        stream,
        reader,
        lane=Lane.LOW,
        nic=nic,
        regions=regions,
        inbox=inbox,
        sender=Sender(outbox, nic, Lane.LOW),
        outbox=outbox,
        on_heard=lambda: None,
        on_transfer=lambda header, payload: pytest.fail("something was taken"),
        on_pull=lambda header, payload: pytest.fail("something was taken"),
    )


async def test_a_link_that_was_closed_takes_nothing_more_of_what_its_stream_holds() -> None:
    stream = Held()
    receiver = receiver_of(stream, Regions())
    receiver.close()
    with pytest.raises(PeerGone, match="this side closed it"):
        await asyncio.wait_for(receiver.run(), 5)
    assert stream.unread()


@pytest.fixture
def connected() -> Iterator[tuple[PlainStream, socket.socket]]:
    one, other = socket.socketpair()
    with contextlib.closing(PlainStream.of(one)) as stream, other:
        yield stream, other


class Broken:
    """A region that does not keep to its contract."""

    nbytes = 100

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        raise RuntimeError("no such slot")

    def on_write(self, imm: int) -> None:
        raise AssertionError("nothing was to land")


async def test_who_runs_the_receiver_hears_of_a_region_that_fails_while_it_waits(
    connected: tuple[PlainStream, socket.socket],
) -> None:
    stream, peer = connected
    regions = Regions()
    key = regions.register(Broken())
    running = asyncio.ensure_future(receiver_of(stream, regions).run())
    await asyncio.sleep(0)
    peer.sendall(Header(Kind.WRITE, length=100, key=key).pack())
    with pytest.raises(RuntimeError, match="no such slot"):
        await asyncio.wait_for(running, 5)


class Told(Broken):
    """A region for writes of nothing: what they carried, in order."""

    def __init__(self, log: list[object]) -> None:
        self._log = log

    def on_write(self, imm: int) -> None:
        self._log.append(imm)


class Follower(Bytes, Followed):
    def __init__(self) -> None:
        super().__init__(100)
        self.seen: list[tuple[int, bytes]] = []

    def on_bytes(self, offset: int, nbytes: int) -> None:
        self.seen.append((offset, bytes(self.memory[offset : offset + nbytes])))


async def test_who_follows_a_write_is_told_of_its_bytes_until_the_frame_ends_or_the_key_is_revoked(
    connected: tuple[PlainStream, socket.socket],
) -> None:
    stream, peer = connected
    regions, region = Regions(), Follower()
    key = regions.register(region)
    receiver = receiver_of(stream, regions)
    running = asyncio.ensure_future(receiver.run())

    async def send(data: bytes) -> None:
        """What is less than the socket wakes for is taken all the same."""

        def taken() -> bool:
            receiver.listen()
            return not unread(stream)

        peer.sendall(data)
        await until(taken)

    await send(Header(Kind.WRITE, END, 50, 1, key, 20, imm=7).pack())
    await send(b"a" * 10)
    await send(b"b" * 20)
    assert region.seen == [(20, b"a" * 10), (20, b"a" * 10 + b"b" * 20)]
    await send(b"c" * 20)
    assert (region.imms, len(region.seen)) == ([7], 2)
    await send(Header(Kind.WRITE, END, 50, 2, key, 0).pack() + b"d" * 10)
    await send(b"d" * 10)
    assert region.seen[-1] == (0, b"d" * 20)
    seen = len(region.seen)
    regions.revoke(key)
    receiver.drop(key)
    await send(b"e" * 10)
    assert len(region.seen) == seen
    assert bytes(region.memory[:30]) == b"d" * 20 + b"a" * 10
    running.cancel()


def unread(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("bytes_per_s", [None, 1e6])
async def test_every_frame_ends_once_and_in_order_whether_the_nic_lets_it_pass_or_wait(
    connected: tuple[PlainStream, socket.socket], bytes_per_s: float | None
) -> None:
    stream, peer = connected
    log: list[object] = []
    regions, nic = Regions(), PacedNic("nic", bytes_per_s)
    key = regions.register(Told(log))
    receiver = receiver_of(stream, regions, nic, lambda op, message: log.append((op, message)))
    # Frames behind one another: an end comes together with the begin, and the end, of the next.
    sizes = [3000, 0, 9000, 1, 0, 0, 20_000, 7]
    frames = b"".join(
        Header(Kind.MESSAGE, length=size, op=op).pack()
        + bytes([op]) * size
        + Header(Kind.WRITE, END, key=key, imm=op).pack()
        for op, size in enumerate(sizes)
    )
    running = asyncio.ensure_future(receiver.run())
    peer.sendall(frames)
    await until(lambda: len(log) == 2 * len(sizes))
    running.cancel()
    assert log == [
        entry for op, size in enumerate(sizes) for entry in ((op, bytes([op]) * size), op)
    ]
    assert nic.moved()[Lane.LOW, "rx"] == sum(sizes)
    assert not receiver.busy
    nic.close()
