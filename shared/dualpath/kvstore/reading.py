"""Reading blocks from their slots: into memory, or into the page cache, for the kernel to send from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import NamedTuple

from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.checksum import CHECKSUM_BYTES
from dualpath.kvstore.extent import Extent
from dualpath.kvstore.health import DiskHealth
from dualpath.kvstore.index import BlockIndex
from dualpath.kvstore.volume import Volume
from dualpath.memory.file_part import Piece
from dualpath.tasks import Threads

_NO_CHECKSUM = bytes(CHECKSUM_BYTES)
_NOTHING = memoryview(b"")

INLINE_BYTES = 4 << 20
"""What the page cache holds is read by the event loop, up to so much at a time: copying it takes a few tenths of a
millisecond, and a thread would cost about as much."""

Outcome = bool | OSError
"""Of one block: it was read, the file ends before it does, or the disk refuses."""


class StoredBlock(NamedTuple):
    """What was found of a block: its bytes where it is FOUND, and the checksum that it was stored with."""

    status: ReadStatus
    checksum: bytes = _NO_CHECKSUM
    data: Piece = _NOTHING


class _Place(NamedTuple):
    """Where the block with index `at` of a call lies."""

    at: int
    slot: int
    extent: Extent


class BlockReader:
    """Reads of one disk; belongs to one event loop."""

    def __init__(
        self,
        index: BlockIndex,
        volume: Volume,
        threads: Threads,
        health: DiskHealth,
        *,
        direct: bool,
    ) -> None:
        self._index = index
        self._volume = volume
        self._threads = threads
        self._health = health
        self._direct = direct

    async def read(
        self, space: str, keys: Sequence[bytes], into: Sequence[memoryview]
    ) -> list[StoredBlock]:
        """See DiskStore.read_many."""
        with self._pinned(space, keys) as places:
            outcomes: list[Outcome] = []
            if not self._direct and sum(len(into[place.at]) for place in places) <= INLINE_BYTES:
                outcomes = [
                    _outcome(partial(place.extent.read_cached, place.slot, into[place.at]))
                    for place in places
                ]
            if outcomes.count(True) < len(places):
                outcomes = await self._threads.run(
                    partial(_read, places, into, direct=self._direct)
                )
            return self._found(space, keys, places, outcomes, lambda place: into[place.at])

    def cached(self, space: str, keys: Sequence[bytes], nbytes: int) -> int:
        """See DiskStore.cached."""
        for place in self._places(space, keys):
            try:
                if not place.extent.cached(place.slot, nbytes):
                    return place.at
            except OSError:
                return place.at
        return len(keys)

    @asynccontextmanager
    async def in_place(
        self,
        space: str,
        keys: Sequence[bytes],
        nbytes: int,
        ahead: Sequence[bytes],
        *,
        cached: bool,
    ) -> AsyncIterator[list[StoredBlock]]:
        """See DiskStore.in_place."""
        with self._pinned(space, keys) as places:
            outcomes: list[Outcome] = [True] * len(places)
            if not cached:
                coming = self._places(space, ahead)
                outcomes = await self._threads.run(partial(_fetch, places, coming, nbytes))
            yield self._found(
                space, keys, places, outcomes, lambda place: place.extent.part(place.slot, nbytes)
            )

    def _places(self, space: str, keys: Sequence[bytes]) -> list[_Place]:
        """Of the blocks that are there."""
        return [
            _Place(at, slot, self._volume.extent(space, slot))
            for at, slot in enumerate(self._index.slots(space, keys))
            if slot is not None
        ]

    @contextmanager
    def _pinned(self, space: str, keys: Sequence[bytes]) -> Iterator[list[_Place]]:
        places = self._places(space, keys)
        slots = [place.slot for place in places]
        if slots:
            self._index.pin(space, slots)
        try:
            yield places
        finally:
            if slots:
                self._index.unpin(space, slots)

    def _found(
        self,
        space: str,
        keys: Sequence[bytes],
        places: Sequence[_Place],
        outcomes: Sequence[Outcome],
        data: Callable[[_Place], Piece],
    ) -> list[StoredBlock]:
        found = [StoredBlock(ReadStatus.ABSENT)] * len(keys)
        for place, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, OSError):
                self._health.failed("read", outcome)
                found[place.at] = StoredBlock(ReadStatus.FAILED)
                continue
            self._health.worked("read")
            if outcome:
                checksum = self._index.checksum(space, place.slot)
                found[place.at] = StoredBlock(ReadStatus.FOUND, checksum, data(place))
            else:
                found[place.at] = StoredBlock(ReadStatus.CORRUPT)
        for status, blocks in Counter(block.status for block in found).items():
            self._health.counters[f"read_{status.name.lower()}"] += blocks
        return found


def _read(places: Sequence[_Place], into: Sequence[memoryview], *, direct: bool) -> list[Outcome]:
    if not direct:
        for place in places:
            place.extent.prefetch(place.slot, len(into[place.at]))
    return [
        _outcome(partial(place.extent.read, place.slot, into[place.at], direct=direct))
        for place in places
    ]


def _fetch(places: Sequence[_Place], ahead: Sequence[_Place], nbytes: int) -> list[Outcome]:
    """Have blocks in the page cache, and those of `ahead` on their way there."""
    for place in (*places, *ahead):
        place.extent.prefetch(place.slot, nbytes)
    return [_outcome(partial(place.extent.fetch, place.slot, nbytes)) for place in places]


def _outcome(read: Callable[[], bool]) -> Outcome:
    try:
        return read()
    except OSError as error:
        return error
