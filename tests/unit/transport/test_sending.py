from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import pytest

from dualpath.lanes.api import Lane
from dualpath.lanes.nic import PacedNic
from dualpath.transport.frames import Header, Kind, Status
from dualpath.transport.outbox import Outbox
from dualpath.transport.sending import Sender
from dualpath.transport.stream import PlainStream

CHUNKS = 5


class Greedy(PlainStream):
    """A peer that reads as fast as anybody can send."""

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:  # type: ignore[override]
        return sum(map(len, buffers))


async def test_a_write_of_many_large_chunks_lets_others_run_between_them() -> None:
    ours, theirs = socket.socketpair()
    with Greedy.of(ours) as stream, theirs:
        nic = PacedNic("nic")
        sender = Sender(Outbox(stream, pytest.fail), nic, Lane.LOW)
        chunk = memoryview(bytes(nic.quantum_bytes))
        write = asyncio.create_task(sender.write(1, 0, [chunk] * CHUNKS, 0))
        turns = 0
        while not sender.owed:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= CHUNKS
        sender.acknowledged(Header(Kind.WRITE_ACK, Status.OK, op=1))
        assert (await write).status is Status.OK
