"""Which blocks clients count on for a while. Pure: times come in as arguments."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable


class LeaseTable:
    """Blocks under lease, by namespace and key; each lease ends when released or when its time is over."""

    def __init__(self) -> None:
        self._leases: dict[int, tuple[str, frozenset[bytes]]] = {}
        self._ends: list[tuple[float, int]] = []
        # A dict per namespace: making a name of each key costs more than all the rest.
        self._holds: defaultdict[str, dict[bytes, int]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, lease: int, space: str, keys: Iterable[bytes], end: float) -> None:
        """Hold blocks of a namespace until `end`. Raises ValueError where the lease's number is in use."""
        if lease in self._leases:
            raise ValueError(f"lease {lease} is in use")
        held, holds = frozenset(keys), self._holds[space]
        self._leases[lease] = (space, held)
        for key in held:
            holds[key] = holds.get(key, 0) + 1
        heapq.heappush(self._ends, (end, lease))

    def release(self, lease: int) -> None:
        """End a lease; one that is unknown has ended already."""
        space, held = self._leases.pop(lease, ("", frozenset[bytes]()))
        holds = self._holds[space]
        for key in held:
            if holds[key] == 1:
                del holds[key]
            else:
                holds[key] -= 1
        if not holds:
            del self._holds[space]

    def expire(self, now: float) -> None:
        """End every lease whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            self.release(heapq.heappop(self._ends)[1])

    def holds(self, space: str, key: bytes) -> bool:
        return key in self._holds.get(space, ())
