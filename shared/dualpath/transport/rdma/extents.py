"""Where bytes lie: addresses and lengths. Pure."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence

from dualpath.transport.frames import MAX_TRANSFER_BYTES, MalformedFrame

Extent = tuple[int, int]
"""Address and length."""

_EXTENT = struct.Struct("<QQ")
MAX_EXTENTS = MAX_TRANSFER_BYTES // _EXTENT.size


def pack(extents: Iterable[Extent]) -> bytes:
    """Raises struct.error for values beyond 64 bits."""
    return b"".join(_EXTENT.pack(*extent) for extent in extents)


def unpack(data: bytes) -> list[Extent]:
    """Raises MalformedFrame."""
    if not data or len(data) % _EXTENT.size:
        raise MalformedFrame(f"a description of memory of {len(data)} bytes")
    extents = [(address, nbytes) for address, nbytes in _EXTENT.iter_unpack(data)]
    if not all(nbytes for _, nbytes in extents):
        raise MalformedFrame("a description of memory with an empty piece")
    return extents


def total(extents: Iterable[Extent]) -> int:
    return sum(nbytes for _, nbytes in extents)


def take_views(views: deque[memoryview], nbytes: int) -> list[memoryview]:
    """Remove the first `nbytes` of `views`, which has at least so many."""
    taken: list[memoryview] = []
    while nbytes:
        view = views.popleft()
        if len(view) > nbytes:
            views.appendleft(view[nbytes:])
            view = view[:nbytes]
        if view:
            taken.append(view)
            nbytes -= len(view)
    return taken


def take_extents(extents: deque[Extent], nbytes: int) -> list[Extent]:
    """Remove the first `nbytes` of `extents`, which has at least so many."""
    taken: list[Extent] = []
    while nbytes:
        address, length = extents.popleft()
        if length > nbytes:
            extents.appendleft((address + nbytes, length - nbytes))
            length = nbytes
        taken.append((address, length))
        nbytes -= length
    return taken


def pair(local: Sequence[Extent], remote: Sequence[Extent]) -> tuple[list[Extent], list[Extent]]:
    """Both, cut so that their pieces have pairwise the same lengths. Their totals must be equal."""
    left, right = deque(local), deque(remote)
    pairs: tuple[list[Extent], list[Extent]] = ([], [])
    while left:
        nbytes = min(left[0][1], right[0][1])
        pairs[0].extend(take_extents(left, nbytes))
        pairs[1].extend(take_extents(right, nbytes))
    return pairs
