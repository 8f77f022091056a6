from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.support.wait import until

from dualpath.lanes.api import Lane
from dualpath.lanes.nic import PacedNic
from dualpath.transport.frames import Header, Kind, MalformedFrame
from dualpath.transport.outbox import Outbox
from dualpath.transport.rdma.extents import pack
from dualpath.transport.rdma.memory import Pinned, Rooms
from dualpath.transport.rdma.rail import Rail
from dualpath.transport.rdma.writing import EAGER_BYTES, RdmaSender
from dualpath.transport.sending import Outcome
from dualpath.transport.stream import PlainStream

NBYTES = 4 * EAGER_BYTES


def sender_on(stream: PlainStream) -> RdmaSender:
    """One whose peer grants nothing by itself, so that no payload moves."""

    async def attach() -> Rail:
        return cast("Rail", None)

    return RdmaSender(
        Outbox(stream, pytest.fail),
        PacedNic("nic"),
        Lane.LOW,
        pinned=Pinned(),
        rooms=Rooms("outgoing", lambda _: None),
        attach=attach,
    )


def grant(nbytes: int) -> tuple[Header, bytes]:
    payload = pack([(4096, nbytes)])
    return Header(Kind.GRANT, length=len(payload), op=1), payload


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[RdmaSender, asyncio.Task[Outcome]]]:
    """A write of NBYTES that the peer has been asked for, and is cancelled at the end."""
    ours, theirs = socket.socketpair()
    with PlainStream.of(ours) as stream, theirs:
        sender = sender_on(stream)
        write = asyncio.create_task(sender.write(1, 0, [memoryview(bytes(NBYTES))], 0))
        await until(lambda: sender.owed)
        yield sender, write
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write


async def test_a_grant_that_comes_between_a_cancellation_and_its_end_is_passed_over() -> None:
    async with asked() as (sender, write):
        write.cancel()
        sender.granted(*grant(NBYTES))
        await asyncio.wait({write})
        sender.granted(*grant(NBYTES))


async def test_a_grant_of_more_than_was_asked_for_is_a_fault() -> None:
    async with asked() as (sender, _):
        with pytest.raises(MalformedFrame, match="more than it asked for"):
            sender.granted(*grant(NBYTES + 1))
