"""Frames of a link: a fixed header and raw payload. Bytes in, events out; no sockets here.

    magic u16 | kind u8 | code u8 | length u32 | op u64 | key u64 | offset u64 | imm u64     little-endian

`length` counts the payload bytes that follow. `op` is chosen by the sender of a WRITE or MESSAGE and comes
back in its acknowledgement. `code` is END on the last WRITE of an op, a Status in acknowledgements.
The four kinds of the handshake have the same header in every version of the protocol. The kinds from ATTACH on
belong to transports that move the payload of writes beside the link (see `rdma`, `samehost`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, unique
from typing import NamedTuple

from dualpath.memory.file_part import Piece
from dualpath.wire.codec import MAX_MESSAGE_BYTES

_HEADER = struct.Struct("<HBBIQQQQ")
HEADER_BYTES = _HEADER.size
MAGIC = 0xD9A7

END = 1
"""Code of the WRITE frame that ends its op; only that frame's `imm` counts."""

BUSY = 1
"""Code of an ALIVE whose sender has what it was sent, and waits for its own NIC, memory or handler."""

MAX_HANDSHAKE_BYTES = 4096
MAX_WRITE_BYTES = 64 << 20
"""Of one frame. It bounds no memory: payload lands where the region says, or nowhere."""
MAX_TRANSFER_BYTES = 64 * 1024
"""Of a description of memory: of a whole process, or of where one write goes."""
MESSAGE_WINDOW = 64
"""Messages that a sender may have unacknowledged on one link; more is a fault. With MAX_MESSAGE_BYTES it
bounds what a receiver must hold, and receiving never has to wait for a handler."""

_IOV_MAX = 1000
_SCRATCH_BYTES = 256 * 1024
_scratch = memoryview(bytearray(_SCRATCH_BYTES))
"""Where discarded payload goes. Nobody reads it, so all readers share it."""


@unique
class Kind(IntEnum):
    HELLO = 1
    PROOF = 2
    WELCOME = 3
    REFUSE = 4
    WRITE = 16
    WRITE_ACK = 17
    MESSAGE = 18
    MESSAGE_ACK = 19
    ALIVE = 20
    ATTACH = 32
    ASK = 33
    GRANT = 34
    LANDED = 35
    STOPPED = 36
    PULL = 48
    PULLED = 49


@unique
class Status(IntEnum):
    """Codes of acknowledgements."""

    OK = 0
    REVOKED = 1
    MALFORMED = 2
    """Key never issued, or out of bounds; the connection is closed behind it."""
    REFUSED = 3
    """The message's handler raised."""


_HANDSHAKE = frozenset({Kind.HELLO, Kind.PROOF, Kind.WELCOME, Kind.REFUSE})
TRANSFER = frozenset({Kind.ATTACH, Kind.ASK, Kind.GRANT, Kind.LANDED, Kind.STOPPED})
_KINDS = {int(kind): kind for kind in Kind}
_MAX_LENGTH = {
    Kind.HELLO: MAX_HANDSHAKE_BYTES,
    Kind.PROOF: MAX_HANDSHAKE_BYTES,
    Kind.WELCOME: MAX_HANDSHAKE_BYTES,
    Kind.REFUSE: MAX_HANDSHAKE_BYTES,
    Kind.WRITE: MAX_WRITE_BYTES,
    Kind.WRITE_ACK: 0,
    Kind.MESSAGE: MAX_MESSAGE_BYTES,
    Kind.MESSAGE_ACK: 0,
    Kind.ALIVE: 0,
    Kind.ATTACH: MAX_TRANSFER_BYTES,
    Kind.ASK: 0,
    Kind.GRANT: MAX_TRANSFER_BYTES,
    Kind.LANDED: 0,
    Kind.STOPPED: 0,
    Kind.PULL: MAX_TRANSFER_BYTES,
    Kind.PULLED: 0,
}


class MalformedFrame(ValueError):
    """Bytes that no frame begins with, or a frame that has no place here."""


class Header(NamedTuple):
    kind: Kind
    code: int = 0
    length: int = 0
    op: int = 0
    key: int = 0
    offset: int = 0
    imm: int = 0

    def pack(self) -> bytes:
        """Raise struct.error for values beyond their fields."""
        return _HEADER.pack(MAGIC, *self)


class Begin(NamedTuple):
    """A header is complete. Where its length is not 0, say with `into` or `discard` where the payload goes
    before asking for `buffers` again."""

    header: Header


class End(NamedTuple):
    """The frame is complete, its payload with it."""

    header: Header


Event = Begin | End


class FrameReader:
    """Turns received bytes into events, without holding payload.

    The owner receives into `buffers()`, says with `received` how many bytes came, and tells at every Begin
    where the payload goes. Until `authenticated` only handshake frames are accepted, afterwards all others.
    """

    def __init__(self) -> None:
        self._header_bytes = bytearray(HEADER_BYTES)
        self._header_view = memoryview(self._header_bytes)
        self._header_filled = 0
        self._current: Header | None = None
        self._left = 0
        self._pieces: list[memoryview] | None = None
        self._piece = 0
        self._authenticated = False

    def authenticated(self) -> None:
        """The handshake is over: from now on data frames only."""
        self._authenticated = True

    @property
    def current(self) -> Header | None:
        """The frame whose payload is on its way."""
        return self._current

    @property
    def left(self) -> int:
        """Bytes of its payload that are still to come."""
        return self._left

    def into(self, pieces: Sequence[memoryview]) -> None:
        """Put the payload into `pieces` (of format "B", writable, together of its length), in order."""
        total = sum(map(len, pieces))
        if total != self._left:
            raise ValueError(f"{self._left} payload bytes do not fit pieces of {total} bytes")
        # Without empty ones, so that there is always room in the first ones.
        self._pieces = [piece for piece in pieces if piece]
        self._piece = 0

    def discard(self) -> None:
        """Drop the payload, or what is still to come of it. What `into` got is not written any more."""
        self._pieces = None

    def buffers(self) -> list[memoryview]:
        """Where the next bytes go, in order; valid until the next call of another method."""
        header = self._header_view[self._header_filled :]
        if self._current is None:
            return [header]
        if self._pieces is None:
            drop = _scratch[: min(self._left, _SCRATCH_BYTES)]
            return [drop, header] if len(drop) == self._left else [drop]
        pieces = self._pieces[self._piece : self._piece + _IOV_MAX]
        if self._piece + len(pieces) == len(self._pieces):
            pieces.append(header)
        return pieces

    def received(self, nbytes: int) -> list[Event]:
        """`nbytes` more bytes lie in `buffers()`. At most an End, a Begin, and its own End where it has no payload.

        Raises MalformedFrame; the reader is of no use afterwards.
        """
        events: list[Event] = []
        if self._current is not None:
            taken = min(nbytes, self._left)
            self._left -= taken
            nbytes -= taken
            if self._pieces is not None:
                self._fill(taken)
            if self._left:
                return events
            events.append(End(self._current))
            self._current = self._pieces = None
        self._header_filled += nbytes
        if self._header_filled < HEADER_BYTES:
            return events
        self._header_filled = 0
        header = self._parse()
        events.append(Begin(header))
        if header.length:
            self._current = header
            self._left = header.length
        else:
            events.append(End(header))
        return events

    def _fill(self, taken: int) -> None:
        pieces = self._pieces or []
        while taken:
            size = len(pieces[self._piece])
            if taken < size:
                pieces[self._piece] = pieces[self._piece][taken:]
                return
            taken -= size
            self._piece += 1

    def _parse(self) -> Header:
        magic, number, code, length, op, key, offset, imm = _HEADER.unpack(self._header_bytes)
        if magic != MAGIC:
            raise MalformedFrame(f"a frame begins with 0x{magic:04x} and not 0x{MAGIC:04x}")
        kind = _KINDS.get(number)
        if kind is None:
            raise MalformedFrame(f"frames of kind {number} do not exist")
        if (kind in _HANDSHAKE) == self._authenticated:
            when = "after" if self._authenticated else "before the end of"
            raise MalformedFrame(f"a {kind.name} frame came {when} the handshake")
        if length > _MAX_LENGTH[kind]:
            raise MalformedFrame(
                f"a {kind.name} frame of {length} bytes came; at most {_MAX_LENGTH[kind]} are accepted"
            )
        return Header(kind, code, length, op, key, offset, imm)


def split(source: Sequence[Piece], chunk_bytes: int) -> list[list[Piece]]:
    """Cut the pieces of `source`, end to end, into chunks of `chunk_bytes` (the last one may be smaller).

    Nothing is copied. An empty source gives one empty chunk: a write of nothing still has a last frame.
    """
    chunks: list[list[Piece]] = [[]]
    room = chunk_bytes
    for piece in source:
        start = 0
        while start < len(piece):
            if not room:
                chunks.append([])
                room = chunk_bytes
            part = piece[start : start + room]
            chunks[-1].append(part)
            start += len(part)
            room -= len(part)
    return chunks
