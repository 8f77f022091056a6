"""The outbox over a socket pair whose reader is slow, stops or goes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.support.wait import until

from dualpath.lanes import Priority
from dualpath.memory.file_part import FilePart, Piece
from dualpath.transport.outbox import MAX_CONTROL_BYTES, Outbox
from dualpath.transport.stream import PlainStream

Pair = tuple[Outbox, socket.socket, list[str]]
BIG = 2_000_000


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """An outbox, the reading end of its socket, and the errors that it reported."""
    one, theirs = socket.socketpair()
    ours = PlainStream.of(one)
    theirs.setblocking(False)
    errors: list[str] = []

    def fail(reason: str) -> None:
        errors.append(reason)
        outbox.close()

    outbox = Outbox(ours, fail)
    yield outbox, theirs, errors
    outbox.close()
    ours.close()
    theirs.close()


async def read(sock: socket.socket, nbytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < nbytes:
        data += await loop.sock_recv(sock, nbytes - len(data))
    return bytes(data)


def put(outbox: Outbox, data: bytes, priority: Priority = Priority.BULK) -> asyncio.Task[bool]:
    return asyncio.ensure_future(outbox.sent(outbox.put([memoryview(data)], priority)))


async def test_frames_leave_whole_control_first_then_messages_then_bulk(pair: Pair) -> None:
    outbox, theirs, _ = pair
    bulk = [random.Random(n).randbytes(BIG) for n in range(2)]
    sending = [put(outbox, bulk[0]), put(outbox, bulk[1])]
    sending.append(put(outbox, b"message", Priority.MESSAGE))
    outbox.control(b"control")
    data = await read(theirs, 2 * BIG + 14)
    assert data == bulk[0] + b"control" + b"message" + bulk[1]
    assert await asyncio.gather(*sending) == [True] * 3
    await until(lambda: outbox.idle)


class Greedy(PlainStream):
    """Takes all at once."""

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:  # type: ignore[override]
        return sum(map(len, buffers))


async def test_a_frame_that_fills_a_turn_does_not_hold_up_the_next_where_nothing_of_it_is_left() -> (
    None
):
    ours, theirs = socket.socketpair()
    with Greedy.of(ours) as stream, theirs:
        outbox = Outbox(stream, pytest.fail)
        frames = [outbox.put([memoryview(b"1" * BIG)], Priority.BULK) for _ in range(2)]
        assert [frame.done for frame in frames] == [True, True]
        outbox.close()


async def test_a_frame_of_very_many_pieces_leaves(pair: Pair) -> None:
    outbox, theirs, _ = pair
    data = random.Random(3).randbytes(50_000)
    pieces: list[Piece] = [memoryview(data)[start : start + 7] for start in range(0, len(data), 7)]
    sending = asyncio.ensure_future(outbox.sent(outbox.put(pieces, Priority.BULK)))
    assert await read(theirs, len(data)) == data
    assert await sending


async def test_a_queued_frame_that_is_cancelled_does_not_leave(pair: Pair) -> None:
    outbox, theirs, _ = pair
    first, second = put(outbox, b"1" * BIG), put(outbox, b"2" * BIG)
    third = put(outbox, b"3" * 10)
    await asyncio.sleep(0)
    second.cancel()
    assert await read(theirs, BIG + 10) == b"1" * BIG + b"3" * 10
    assert await first
    assert await third
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_a_started_frame_that_is_cancelled_leaves_as_it_was(pair: Pair) -> None:
    outbox, theirs, _ = pair
    source = bytearray(b"1" * BIG)
    parcel = outbox.put([memoryview(source)], Priority.BULK)
    first, second = asyncio.ensure_future(outbox.sent(parcel)), put(outbox, b"2")
    await asyncio.sleep(0)
    assert parcel.started
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    source[:] = b"x" * BIG
    source.clear()
    assert await read(theirs, BIG + 1) == b"1" * BIG + b"2"
    assert await second


@pytest.fixture
def file(tmp_path: Path) -> Iterator[IO[bytes]]:
    """A file of 3 · BIG bytes, open to read and write."""
    with (tmp_path / "file").open("w+b", buffering=0) as opened:
        opened.write(random.Random(4).randbytes(3 * BIG))
        yield opened


async def test_parts_of_a_file_leave_behind_their_header_and_before_the_next_frame(
    pair: Pair, file: IO[bytes]
) -> None:
    outbox, theirs, _ = pair
    fd, data = file.fileno(), os.pread(file.fileno(), 3 * BIG, 0)
    parts: list[Piece] = [memoryview(b"header"), FilePart(fd, BIG, BIG), FilePart(fd, 0, 5)]
    sending = asyncio.ensure_future(outbox.sent(outbox.put(parts, Priority.BULK)))
    after = put(outbox, b"after")
    assert (
        await read(theirs, 6 + BIG + 5 + 5) == b"header" + data[BIG : 2 * BIG] + data[:5] + b"after"
    )
    assert await sending
    assert await after


async def test_a_started_frame_of_a_file_that_is_cancelled_leaves_whole_before_the_file_is_closed(
    pair: Pair, file: IO[bytes]
) -> None:
    outbox, theirs, _ = pair
    data = os.pread(file.fileno(), 3 * BIG, 0)
    parcel = outbox.put([memoryview(b"header"), FilePart(file.fileno(), 0, 3 * BIG)], Priority.BULK)
    sending = asyncio.ensure_future(outbox.sent(parcel))
    await asyncio.sleep(0)
    assert parcel.started
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    file.close()
    assert await read(theirs, 6 + 3 * BIG) == b"header" + data


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_file_that_is_cut_while_it_is_sent_ends_the_connection(
    pair: Pair, file: IO[bytes], cancelled: bool
) -> None:
    outbox, theirs, errors = pair
    parcel = outbox.put([memoryview(b"header"), FilePart(file.fileno(), 0, 3 * BIG)], Priority.BULK)
    sending = asyncio.ensure_future(outbox.sent(parcel))
    await asyncio.sleep(0)
    file.truncate(10)
    if cancelled:
        sending.cancel()
        await asyncio.wait([sending])
    else:
        reading = asyncio.ensure_future(read(theirs, 4 * BIG))
        assert not await sending
        reading.cancel()
    assert len(errors) == 1
    assert "file ends" in errors[0]


async def test_closing_ends_every_wait(pair: Pair) -> None:
    outbox, _, errors = pair
    sending = [put(outbox, bytes(BIG)) for _ in range(3)]
    await asyncio.sleep(0)
    outbox.close()
    assert await asyncio.gather(*sending) == [False] * 3
    assert await put(outbox, b"late") is False
    outbox.control(b"late")
    assert not errors


async def test_a_reader_that_is_gone_is_reported_once(pair: Pair) -> None:
    outbox, theirs, errors = pair
    sending = put(outbox, bytes(BIG))
    await asyncio.sleep(0)
    theirs.close()
    assert await sending is False
    assert len(errors) == 1


async def test_acknowledgements_that_nobody_reads_are_an_error(pair: Pair) -> None:
    outbox, _, errors = pair
    frame = bytes(1000)
    for _ in range(2 * MAX_CONTROL_BYTES // len(frame)):
        outbox.control(frame)
    assert errors == ["it does not read the acknowledgements of what it sends"]
