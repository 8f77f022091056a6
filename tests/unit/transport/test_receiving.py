from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator, Sequence

import pytest

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.frames import FrameReader, Header, Kind
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


def receiver_of(stream: ByteStream, regions: Regions) -> Receiver:
    """Where nothing but writes is to come."""

    async def ignore(peer: Address, message: bytes) -> None:
        raise AssertionError("nothing was to come")

    reader, nic = FrameReader(), PacedNic("nic")
    reader.authenticated()
    outbox = Outbox(stream, pytest.fail)
    return Receiver(
        stream,
        reader,
        lane=Lane.LOW,
        nic=nic,
        regions=regions,
        inbox=Inbox(
            Address("peer", "1", "h", 1),
            ignore,
            outbox.control,
            lambda error: pytest.fail(str(error)),
        ),
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
