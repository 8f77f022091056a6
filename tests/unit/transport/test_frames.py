from __future__ import annotations

import random
import struct
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.transport.frames import (
    END,
    HEADER_BYTES,
    MAGIC,
    MAX_HANDSHAKE_BYTES,
    MAX_WRITE_BYTES,
    Begin,
    End,
    Event,
    FrameReader,
    Header,
    Kind,
    MalformedFrame,
    split,
)
from dualpath.wire.codec import MAX_MESSAGE_BYTES

DATA = [Kind.WRITE, Kind.MESSAGE]
U64 = st.integers(0, 2**64 - 1)


def headers() -> st.SearchStrategy[Header]:
    def with_length(kind: Kind) -> st.SearchStrategy[Header]:
        length = st.integers(0, 300) if kind in DATA else st.just(0)
        return st.builds(Header, st.just(kind), st.integers(0, 255), length, U64, U64, U64, U64)

    kinds = [Kind.WRITE, Kind.MESSAGE, Kind.WRITE_ACK, Kind.MESSAGE_ACK, Kind.ALIVE]
    return st.sampled_from(kinds).flatmap(with_length)


def feed(reader: FrameReader, data: bytes, count: int) -> list[Event]:
    """Receive at most `count` bytes of `data`, as a socket would."""
    taken = 0
    for buffer in reader.buffers():
        part = data[taken : taken + min(len(buffer), count - taken)]
        buffer[: len(part)] = part
        taken += len(part)
        if taken == count:
            break
    return reader.received(taken)


def room(reader: FrameReader) -> int:
    return sum(len(buffer) for buffer in reader.buffers())


@given(st.lists(headers(), max_size=8), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[Header], draw: random.Random
) -> None:
    payloads = [draw.randbytes(header.length) for header in sent]
    data = b"".join(h.pack() + p for h, p in zip(sent, payloads, strict=True))
    reader = FrameReader()
    reader.authenticated()
    got: list[Header] = []
    memories: list[bytearray | None] = []
    position = 0
    while position < len(data):
        count = min(
            draw.choice([1, 7, HEADER_BYTES, 200, 1000]), room(reader), len(data) - position
        )
        for event in feed(reader, data[position : position + count], count):
            if isinstance(event, End):
                got.append(event.header)
            elif not event.header.length:
                memories.append(bytearray())
            elif draw.random() < 0.2:
                reader.discard()
                memories.append(None)
            else:
                memory = bytearray(event.header.length)
                cuts = sorted(draw.randrange(len(memory) + 1) for _ in range(draw.randrange(5)))
                edges = [0, *cuts, len(memory)]
                view = memoryview(memory)
                pieces = [view[a:b] for a, b in pairwise(edges)]
                reader.into(pieces)
                memories.append(memory)
        position += count
    assert got == sent
    for payload, received in zip(payloads, memories, strict=True):
        assert received is None or received == payload


def test_a_header_is_never_received_beyond_the_payload_it_follows() -> None:
    reader = FrameReader()
    reader.authenticated()
    assert room(reader) == HEADER_BYTES
    (begin,) = feed(reader, Header(Kind.WRITE, END, 100, 1, 2, 3, 4).pack(), HEADER_BYTES)
    assert begin == Begin(Header(Kind.WRITE, END, 100, 1, 2, 3, 4))
    reader.into([memoryview(bytearray(60)), memoryview(bytearray(40))])
    assert room(reader) == 100 + HEADER_BYTES


def test_dropping_in_mid_frame_leaves_the_memory_alone() -> None:
    memory = bytearray(100)
    reader = FrameReader()
    reader.authenticated()
    feed(reader, Header(Kind.WRITE, END, 100).pack(), HEADER_BYTES)
    reader.into([memoryview(memory)])
    feed(reader, b"a" * 30, 30)
    reader.discard()
    feed(reader, b"b" * 70, 70)
    assert memory == b"a" * 30 + bytes(70)
    assert reader.current is None


def test_discarded_payload_of_any_length_takes_a_fixed_buffer() -> None:
    reader = FrameReader()
    reader.authenticated()
    feed(reader, Header(Kind.WRITE, END, MAX_WRITE_BYTES).pack(), HEADER_BYTES)
    reader.discard()
    left = MAX_WRITE_BYTES
    events: list[Event] = []
    while not events:
        assert room(reader) <= 256 * 1024 + HEADER_BYTES
        count = min(room(reader), left)
        events = reader.received(count)
        left -= count
    assert left == 0
    assert isinstance(events[0], End)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(40), "a frame begins with 0x4547"),
        (Header(Kind.WRITE, length=MAX_WRITE_BYTES + 1).pack(), "at most"),
        (Header(Kind.MESSAGE, length=MAX_MESSAGE_BYTES + 1).pack(), "at most"),
        (Header(Kind.WRITE_ACK, length=1).pack(), "at most 0"),
        (Header(Kind.ALIVE, length=1).pack(), "at most 0"),
        (Header(Kind.HELLO).pack(), "after the handshake"),
        (struct.pack("<HBBIQQQQ", MAGIC, 99, 0, 0, 0, 0, 0, 0), "kind 99"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, text: str) -> None:
    reader = FrameReader()
    reader.authenticated()
    with pytest.raises(MalformedFrame, match=text):
        feed(reader, data, HEADER_BYTES)


def test_before_the_handshake_nothing_else_and_nothing_long_is_accepted() -> None:
    with pytest.raises(MalformedFrame, match="before the end of the handshake"):
        feed(FrameReader(), Header(Kind.WRITE, length=1).pack(), HEADER_BYTES)
    long = Header(Kind.HELLO, length=MAX_HANDSHAKE_BYTES + 1)
    with pytest.raises(MalformedFrame, match="at most"):
        feed(FrameReader(), long.pack(), HEADER_BYTES)


def test_pieces_that_do_not_fit_are_refused() -> None:
    reader = FrameReader()
    reader.authenticated()
    feed(reader, Header(Kind.WRITE, length=10).pack(), HEADER_BYTES)
    with pytest.raises(ValueError, match="do not fit"):
        reader.into([memoryview(bytearray(9))])


def test_seeded_garbage_ends_or_is_taken_but_never_hangs_or_grows() -> None:
    draw = random.Random(7)
    for _ in range(3000):
        reader = FrameReader()
        reader.authenticated()
        stream = bytearray()
        for _ in range(draw.randrange(1, 5)):
            kind = draw.choice(list(Kind))
            stream += Header(kind, draw.randrange(256), draw.randrange(400)).pack()
            stream += draw.randbytes(draw.randrange(400))
        for _ in range(draw.randrange(3)):
            stream[draw.randrange(len(stream))] = draw.randrange(256)
        rounds = 0
        try:
            while stream:
                rounds += 1
                assert room(reader) > 0
                count = min(room(reader), len(stream), draw.randrange(1, 300))
                for event in feed(reader, bytes(stream[:count]), count):
                    if isinstance(event, Begin) and event.header.length:
                        reader.discard()
                del stream[:count]
        except MalformedFrame:
            pass
        assert rounds < 5000


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_splitting_loses_and_copies_nothing(source: list[bytes], chunk_bytes: int) -> None:
    chunks = split([memoryview(piece) for piece in source], chunk_bytes)
    assert b"".join(map(bytes, chain.from_iterable(chunks))) == b"".join(source)
    sizes = [sum(map(len, chunk)) for chunk in chunks]
    assert all(size == chunk_bytes for size in sizes[:-1])
    assert sizes[-1] <= chunk_bytes
    assert sizes[-1] > 0 or not any(source)
    assert all(len(piece) for chunk in chunks for piece in chunk)
