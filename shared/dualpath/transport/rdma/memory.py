"""Memory of this process that NICs may reach: what its owners have pinned, and rooms for everything else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from dualpath.memory.arena import Arena
from dualpath.transport.rdma.extents import Extent

ROOM_BYTES = 1 << 20
ROOMS = 16
"""Of each lane and direction. Memory is used only where a room is."""
ROOMS_PER_LINK = 4
"""So that a peer that stands still does not hold all of them."""


def extent_of(view: memoryview) -> Extent:
    """Where a contiguous view lies."""
    if not view.nbytes:
        return 0, 0
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address, view.nbytes


class Pinned:
    """Memory that stays where it is until the endpoint closes: each rail registers it once. It is held, so that
    it is not unmapped before."""

    def __init__(self) -> None:
        self.ranges: list[Extent] = []
        """In order of their addresses."""
        self._views: list[memoryview] = []

    def add(self, view: memoryview) -> Extent | None:
        """The range of `view`, or None where it is pinned already."""
        extent = extent_of(view)
        if not extent[1] or self.holds(extent):
            return None
        self._views.append(memoryview(view))
        self.ranges.append(extent)
        self.ranges.sort()
        return extent

    def holds(self, extent: Extent) -> bool:
        """Whether all of `extent` lies in one pinned range."""
        index = bisect_right(self.ranges, extent[0], key=lambda known: known[0]) - 1
        if index < 0:
            return False
        start, nbytes = self.ranges[index]
        return extent[0] + extent[1] <= start + nbytes

    def extents(self, pieces: Sequence[memoryview]) -> list[Extent] | None:
        """Where the pieces lie, neighbours joined; None where not all of them are pinned."""
        extents: list[Extent] = []
        for piece in pieces:
            extent = extent_of(piece)
            if not self.holds(extent):
                return None
            if extents and sum(extents[-1]) == extent[0]:
                joined = extents[-1][0], extents[-1][1] + extent[1]
                if self.holds(joined):
                    extents[-1] = joined
                    continue
            extents.append(extent)
        return extents

    def close(self) -> None:
        self.ranges.clear()
        self._views.clear()


class Rooms:
    """Pinned rooms of ROOM_BYTES of one lane and direction, first come first served."""

    def __init__(self, name: str, pin: Callable[[memoryview], None]) -> None:
        self._arena = Arena(name, ROOM_BYTES, ROOMS)
        pin(self._arena.memory)

    @property
    def taken(self) -> int:
        """Rooms that are in use."""
        return self._arena.pool_use().used

    async def take(self) -> Room:
        (slot,) = await self._arena.acquire(1)
        return Room(self._arena, slot)

    def close(self) -> None:
        self._arena.close()


class Room:
    """One of them. Whoever took it gives it back once no NIC reads or writes it any more."""

    def __init__(self, arena: Arena, slot: int) -> None:
        self.view = arena.view(slot)
        self.address = extent_of(self.view)[0]
        self._arena = arena
        self._slot = slot

    def give_back(self) -> None:
        self._arena.release([self._slot])
