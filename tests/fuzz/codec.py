"""The codec of frames against a plain second one, over any bytes in any pieces."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from itertools import pairwise

from dualpath.transport.frames import (
    HEADER_BYTES,
    MAGIC,
    MAX_HANDSHAKE_BYTES,
    MAX_TRANSFER_BYTES,
    MAX_WRITE_BYTES,
    Begin,
    FrameReader,
    Header,
    Kind,
    MalformedFrame,
)
from dualpath.wire.codec import MAX_MESSAGE_BYTES

_MAX_KEPT = 1 << 20
_SCRATCH_BYTES = 256 * 1024
_LIMITS = {
    1: MAX_HANDSHAKE_BYTES,
    2: MAX_HANDSHAKE_BYTES,
    3: MAX_HANDSHAKE_BYTES,
    4: MAX_HANDSHAKE_BYTES,
    16: MAX_WRITE_BYTES,
    17: 0,
    18: MAX_MESSAGE_BYTES,
    19: 0,
    20: 0,
    32: MAX_TRANSFER_BYTES,
    33: 0,
    34: MAX_TRANSFER_BYTES,
    35: 0,
    36: 0,
}


@dataclass
class Parsed:
    """`frames` are whole ones with their payloads; `end` says how the bytes ended."""

    frames: list[tuple[Header, bytes]] = field(default_factory=list)
    end: str = ""


def parse(data: bytes, authenticated_after: int) -> Parsed:
    """What the format says of `data`, the handshake being over after so many frames."""
    parsed, at = Parsed(), 0
    while True:
        if len(data) - at < HEADER_BYTES:
            parsed.end = "between frames" if at == len(data) else "in a header"
            return parsed
        magic, kind, code, length, *rest = struct.unpack_from("<HBBIQQQQ", data, at)
        authenticated = len(parsed.frames) >= authenticated_after
        if magic != MAGIC or kind not in _LIMITS or (kind < 16) == authenticated:
            parsed.end = "malformed"
            return parsed
        if length > _LIMITS[kind]:
            parsed.end = "malformed"
            return parsed
        at += HEADER_BYTES
        if len(data) - at < length:
            parsed.end = "in a payload"
            return parsed
        header = Header(Kind(kind), code, length, *rest)
        parsed.frames.append((header, data[at : at + length]))
        at += length


def check(data: bytes, authenticated_after: int, draw: random.Random) -> str:
    """Read `data` in pieces, its payload into scattered memory or nowhere. Returns how it ended.

    Raises AssertionError where the codec and `parse` differ, or the codec asks for nothing or too much.
    """
    wanted = parse(data, authenticated_after)
    reader, got = FrameReader(), Parsed(end="between frames")
    memory: bytearray | None = None
    kept: list[bool] = []
    at = 0
    if not authenticated_after:
        reader.authenticated()
    try:
        while at < len(data):
            buffers = reader.buffers()
            if len(got.frames) < authenticated_after:
                # As in the handshake: nothing of what follows a frame is taken with it.
                del buffers[1:]
            room = sum(map(len, buffers))
            left = 0 if reader.current is None else reader.current.length
            assert 0 < room <= max(left, _SCRATCH_BYTES) + HEADER_BYTES
            assert len(buffers) <= 1001
            count = min(room, len(data) - at, draw.choice((1, 7, 40, 1000, 1 << 20)))
            _fill(buffers, data[at : at + count])
            at += count
            for event in reader.received(count):
                if isinstance(event, Begin):
                    memory = _choose(reader, event.header, draw)
                else:
                    got.frames.append((event.header, bytes(memory or b"")))
                    kept.append(memory is not None)
                    if len(got.frames) == authenticated_after:
                        reader.authenticated()
            if reader.current is not None and draw.random() < 0.05:
                reader.discard()
                memory = None
        if reader.current is not None:
            got.end = "in a payload"
        elif len(reader.buffers()[0]) < HEADER_BYTES:
            got.end = "in a header"
    except MalformedFrame:
        got.end = "malformed"
    assert got.end == wanted.end
    # The frame before a malformed header may be lost with it: they can come in one piece.
    frames = wanted.frames
    if got.end == "malformed" and len(got.frames) == len(frames) - 1:
        frames = frames[:-1]
    assert [header for header, _ in got.frames] == [header for header, _ in frames]
    for whole, (_, payload), (_, right) in zip(kept, got.frames, frames, strict=True):
        assert not whole or payload == right
    return got.end


def _fill(buffers: list[memoryview], data: bytes) -> None:
    for buffer in buffers:
        part = data[: len(buffer)]
        buffer[: len(part)] = part
        data = data[len(part) :]


def _choose(reader: FrameReader, header: Header, draw: random.Random) -> bytearray | None:
    """Where the payload goes: memory in pieces, or None where it is dropped."""
    if not header.length:
        return bytearray()
    if header.length > _MAX_KEPT or draw.random() < 0.2:
        reader.discard()
        return None
    memory = bytearray(header.length)
    cuts = sorted(draw.randrange(len(memory) + 1) for _ in range(draw.choice((0, 3, 1500))))
    view = memoryview(memory)
    reader.into([view[start:stop] for start, stop in pairwise([0, *cuts, len(memory)])])
    return memory
