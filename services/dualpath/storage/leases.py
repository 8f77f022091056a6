"""Which blocks clients count on for a while. Pure: times come in as arguments."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable


class LeaseTable:
    """Blocks under lease; each lease ends when released or when its time is over."""

    def __init__(self) -> None:
        self._leases: dict[int, frozenset[Hashable]] = {}
        self._ends: list[tuple[float, int]] = []
        self._holds: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, lease: int, blocks: Iterable[Hashable], end: float) -> None:
        """Hold `blocks` until `end`. Raises ValueError where the lease's number is in use."""
        if lease in self._leases:
            raise ValueError(f"lease {lease} is in use")
        self._leases[lease] = frozenset(blocks)
        self._holds.update(self._leases[lease])
        heapq.heappush(self._ends, (end, lease))

    def release(self, lease: int) -> None:
        """End a lease; one that is unknown has ended already."""
        blocks = self._leases.pop(lease, frozenset())
        for block in blocks:
            self._holds[block] -= 1
            if not self._holds[block]:
                del self._holds[block]

    def expire(self, now: float) -> None:
        """End every lease whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            self.release(heapq.heappop(self._ends)[1])

    def holds(self, block: Hashable) -> bool:
        return block in self._holds
