"""Memory that the writer shares, as both sides see it, and where in it the payload of a frame lies."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dualpath.memory.copying import Bytes
from dualpath.memory.shared import SEALS, SharedMemory
from dualpath.transport.frames import MAX_TRANSFER_BYTES, MAX_WRITE_BYTES, MalformedFrame
from dualpath.transport.rdma.memory import extent_of

MAX_SEGMENTS = 16
_EXTENT = struct.Struct("<IIQ")
"""Segment, bytes, offset."""
MAX_EXTENTS = MAX_TRANSFER_BYTES // _EXTENT.size
_WORD_BYTES = mmap.PAGESIZE


class Extent(NamedTuple):
    """`pieces` pieces of `nbytes`, each `step` bytes after the one before it."""

    segment: int
    nbytes: int
    offset: int
    pieces: int = 1
    step: int = 0


def unpack(payload: bytes | bytearray) -> list[Extent]:
    """What a PULL says, with pieces of equal length at equal distances joined. Raises MalformedFrame."""
    if not payload or len(payload) % _EXTENT.size:
        raise MalformedFrame(f"a PULL cannot have {len(payload)} bytes")
    extents: list[Extent] = []
    first = (-1, 0, 0)
    total = step = count = last = 0
    for piece in _EXTENT.iter_unpack(payload):
        segment, nbytes, offset = piece
        total += nbytes
        if (segment, nbytes) == first[:2] and (count == 1 or offset - last == step):
            step, count = offset - last, count + 1
        else:
            if count:
                extents.append(Extent(*first, count, step))
            first, count, step = piece, 1, 0
        last = offset
    extents.append(Extent(*first, count, step))
    if total > MAX_WRITE_BYTES:
        raise MalformedFrame(f"a PULL of more than {MAX_WRITE_BYTES} bytes")
    return extents


class Offered:
    """Memory of this process that peers may read. Descriptors are this object's own."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        """By segment."""
        self._views: list[memoryview] = []
        """Held, so that nothing else comes to lie at these addresses."""
        self._starts: list[tuple[int, int, int]] = []
        """(address, bytes, segment), in order."""

    def add(self, shared: SharedMemory) -> None:
        if shared.sealed and len(self.fds) < MAX_SEGMENTS:
            address, nbytes = extent_of(shared.view)
            self._starts.append((address, nbytes, len(self.fds)))
            self._starts.sort()
            self._views.append(memoryview(shared.view))
            self.fds.append(os.dup(shared.fd))

    def pack(self, pieces: Sequence[memoryview], segments: int) -> bytes | None:
        """Where the pieces lie, neighbours joined; None where not all do in the first `segments` segments, or too
        many of them lie apart."""
        extents: list[tuple[int, int, int]] = []
        # Of the memory that the piece before lay in: most often the next one does, too.
        segment = start = 0
        stop = -1
        end = -1
        for piece in pieces:
            address, nbytes = extent_of(piece)
            if not start <= address <= address + nbytes <= stop:
                found = self._find(address, nbytes)
                if found is None or found[2] >= segments:
                    return None
                start, stop, segment = found
                end = -1
            if address == end:
                _, before, offset = extents[-1]
                extents[-1] = segment, before + nbytes, offset
            else:
                extents.append((segment, nbytes, address - start))
            end = address + nbytes
        if not 0 < len(extents) <= MAX_EXTENTS:
            return None
        return b"".join(_EXTENT.pack(*extent) for extent in extents)

    def _find(self, address: int, nbytes: int) -> tuple[int, int, int] | None:
        """Begin, end and number of the segment that holds all of it."""
        index = bisect_right(self._starts, address, key=lambda known: known[0]) - 1
        if index < 0:
            return None
        start, length, segment = self._starts[index]
        return (start, start + length, segment) if address + nbytes <= start + length else None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        self._views.clear()
        self._starts.clear()


class Word:
    """The writer's: whether it has given a link up."""

    def __init__(self) -> None:
        self.shared = SharedMemory("link", _WORD_BYTES)

    def give_up(self) -> None:
        """Peers may see it before what is written next, and must after a `fence`."""
        self.shared.view[0] = 1


class Mapped:
    """A writer's memory, as the target sees it."""

    def __init__(self, fds: Sequence[int]) -> None:
        """`fds`: of its word, then of its segments; they stay the caller's. Raises ValueError, OSError where they
        are not what a writer shares."""
        if not 2 <= len(fds) <= 1 + MAX_SEGMENTS:
            raise ValueError(f"{len(fds)} descriptors came")
        self._word, *self._segments = (_map(fd) for fd in fds)

    @property
    def given_up(self) -> bool:
        """To be asked when what was copied is to be used."""
        return bool(self._word[0])

    def pieces(self, extents: Sequence[Extent]) -> list[Bytes]:
        """Read-only, `[pieces, nbytes]` for each. Raises MalformedFrame for what lies outside."""
        pieces = []
        for segment, nbytes, offset, number, step in extents:
            ends = offset, offset + (number - 1) * step
            start, stop = min(ends), max(ends) + nbytes
            if segment >= len(self._segments) or start < 0 or stop > len(self._segments[segment]):
                raise MalformedFrame(f"a PULL of [{start}, {stop}) of segment {segment}")
            memory = self._segments[segment][offset : offset + nbytes]
            pieces.append(as_strided(memory, (number, nbytes), (step, 1), writeable=False))
        return pieces


def _map(fd: int) -> Bytes:
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise ValueError("memory came that its owner may cut: reading it could end this process")
    return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ), np.uint8)
