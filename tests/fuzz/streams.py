"""Streams of frames: right ones, and ones with lies in them. Everything is drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dualpath.transport.frames import (
    HEADER_BYTES,
    MAGIC,
    MAX_WRITE_BYTES,
    TRANSFER,
    Header,
    Kind,
)
from dualpath.wire.codec import MAX_MESSAGE_BYTES

_U64 = (0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
_LIMITS = (4096, MAX_MESSAGE_BYTES, MAX_WRITE_BYTES)
_LENGTHS = (0, 1, 39, 40, 41, *_LIMITS, *(limit + 1 for limit in _LIMITS), 2**32 - 1)
_DATA = 3 * [Kind.WRITE] + 2 * [Kind.MESSAGE] + [Kind.ALIVE, Kind.WRITE_ACK, Kind.MESSAGE_ACK]
_TRANSFER = sorted(TRANSFER)
_GREETING = (Kind.HELLO, Kind.PROOF, Kind.WELCOME, Kind.REFUSE)


@dataclass
class Streams:
    """`keys` open regions at the target, or are meant to look so; `words` are messages that it understands."""

    draw: random.Random
    keys: Sequence[int] = (1, 2, 3)
    words: Sequence[bytes] = (b"",)
    counts: dict[str, int] = field(default_factory=dict)
    """How often each kind of damage was done."""

    def data(self) -> bytes:
        """Frames as a linked peer may send them."""
        return b"".join(self._data_frame() for _ in range(self.draw.randrange(1, 12)))

    def greeting(self) -> bytes:
        """Frames of the handshake with any payload."""
        return b"".join(
            self._frame(Header(self.draw.choice(_GREETING)), self.draw.randrange(200))
            for _ in range(self.draw.randrange(1, 4))
        )

    def damaged(self, stream: bytes) -> bytes:
        """`stream`, changed once or more (or not at all)."""
        data = bytearray(stream)
        for _ in range(self.draw.choice((0, 1, 1, 1, 2, 5))):
            name = self.draw.choice(sorted(_DAMAGES))
            self.counts[name] = self.counts.get(name, 0) + 1
            data = _DAMAGES[name](self.draw, data or bytearray(1))
        return bytes(data)

    def _data_frame(self) -> bytes:
        draw = self.draw
        kind = draw.choice(_TRANSFER if draw.random() < 0.03 else _DATA)
        if kind is Kind.MESSAGE and draw.random() < 0.5:
            word = draw.choice(self.words)
            return Header(kind, 0, len(word), draw.randrange(1, 99)).pack() + word
        header = Header(
            kind,
            draw.randrange(3),
            0,
            draw.randrange(1, 9),
            draw.choice(self.keys),
            draw.randrange(2000),
            draw.choice(_U64),
        )
        bodied = kind in (Kind.WRITE, Kind.MESSAGE, Kind.ATTACH, Kind.GRANT)
        return self._frame(header, draw.choice((0, 1, 100, 3000)) if bodied else 0)

    def _frame(self, header: Header, length: int) -> bytes:
        return header._replace(length=length).pack() + self.draw.randbytes(length)


def _flip(draw: random.Random, data: bytearray) -> bytearray:
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data


def _cut(draw: random.Random, data: bytearray) -> bytearray:
    return data[: draw.randrange(len(data))]


def _lose(draw: random.Random, data: bytearray) -> bytearray:
    start = draw.randrange(len(data))
    del data[start : start + draw.randrange(1, 100)]
    return data


def _repeat(draw: random.Random, data: bytearray) -> bytearray:
    start = draw.randrange(len(data))
    part = data[start : start + draw.randrange(1, 200)]
    return data[:start] + part * draw.randrange(2, 5) + data[start:]


def _insert(draw: random.Random, data: bytearray) -> bytearray:
    start = draw.randrange(len(data))
    return data[:start] + draw.randbytes(draw.randrange(1, 100)) + data[start:]


def _lie(draw: random.Random, data: bytearray) -> bytearray:
    """An extreme value in one field of the first header, or of one further on where it is found."""
    last = max(len(data) - HEADER_BYTES, 1)
    starts = [at for at in range(last) if data[at : at + 2] == MAGIC.to_bytes(2, "little")]
    start = draw.choice(starts or [0])
    offset, size = draw.choice(((2, 1), (3, 1), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8)))
    value = draw.choice(_LENGTHS if size == 4 else _U64) % (1 << 8 * size)
    data[start + offset : start + offset + size] = value.to_bytes(size, "little")
    return data


def _shuffle(draw: random.Random, data: bytearray) -> bytearray:
    """Two halves of the stream change places."""
    middle = draw.randrange(len(data))
    return data[middle:] + data[:middle]


_DAMAGES = {
    "flip a bit": _flip,
    "cut the end": _cut,
    "lose bytes": _lose,
    "repeat bytes": _repeat,
    "insert bytes": _insert,
    "lie in a header": _lie,
    "change the order": _shuffle,
}
