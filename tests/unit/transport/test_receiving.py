from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.frames import FrameReader, Header, Kind
from dualpath.transport.inbox import Inbox
from dualpath.transport.outbox import Outbox
from dualpath.transport.receiving import PeerGone, Receiver
from dualpath.transport.regions import Regions
from dualpath.transport.sending import Sender
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


async def test_a_link_that_was_closed_takes_nothing_more_of_what_its_stream_holds() -> None:
    async def ignore(peer: Address, message: bytes) -> None:
        raise AssertionError("nothing was to come")

    stream, reader, nic = Held(), FrameReader(), PacedNic("nic")
    reader.authenticated()
    outbox = Outbox(stream, pytest.fail)
    receiver = Receiver(
        stream,
        reader,
        lane=Lane.LOW,
        nic=nic,
        regions=Regions(),
        inbox=Inbox(
            Address("peer", "1", "h", 1),
            ignore,
            outbox.control,
            lambda error: pytest.fail(str(error)),
        ),
        sender=Sender(outbox, nic, Lane.LOW),
        outbox=outbox,
        on_heard=lambda: pytest.fail("something was taken"),
        on_transfer=lambda header, payload: pytest.fail("something was taken"),
        on_pull=lambda header, payload: pytest.fail("something was taken"),
    )
    receiver.close()
    with pytest.raises(PeerGone, match="this side closed it"):
        await asyncio.wait_for(receiver.run(), 5)
