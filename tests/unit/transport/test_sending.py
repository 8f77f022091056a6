from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import pytest

from dualpath.lanes.api import Lane
from dualpath.lanes.nic import PacedNic
from dualpath.transport.frames import END, Header, Kind, Status
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


class Full(PlainStream):
    """Takes nothing for now."""

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:  # type: ignore[override]
        raise BlockingIOError


async def test_a_write_that_is_answered_or_cancelled_before_it_leaves_is_taken_out_of_the_queue() -> (
    None
):
    ours, theirs = socket.socketpair()
    with Full.of(ours) as stream, theirs:
        outbox = Outbox(stream, pytest.fail)
        sender = Sender(outbox, PacedNic("nic"), Lane.LOW)
        piece = memoryview(b"payload")
        refused, cancelled = (asyncio.create_task(sender.write(1, 0, [piece], 0)) for _ in range(2))
        await asyncio.sleep(0)
        assert not outbox.idle
        sender.acknowledged(Header(Kind.WRITE_ACK, Status.REVOKED, op=1))
        outcome = await refused
        assert (outcome.status, outcome.started) == (Status.REVOKED, False)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert outbox.idle
        assert not sender.under_way
        outbox.close()


@pytest.mark.parametrize("source", [[b""], [b"one", b"", b"two"], []])
async def test_empty_pieces_take_no_place_in_a_frame(source: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    with PlainStream.of(ours) as stream, theirs:
        sender = Sender(Outbox(stream, pytest.fail), PacedNic("nic"), Lane.LOW)
        write = asyncio.create_task(sender.write(1, 0, [memoryview(piece) for piece in source], 5))
        await asyncio.sleep(0)
        payload = b"".join(source)
        header = Header(Kind.WRITE, END, len(payload), op=1, key=1, imm=5)
        assert theirs.recv(1000) == header.pack() + payload
        sender.acknowledged(Header(Kind.WRITE_ACK, Status.OK, op=1))
        assert (await write).status is Status.OK
