"""A queue in a given order, from whose middle requests may leave. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from dualpath.policy.api import Ordering, QueuedRequest

_Entry = tuple[tuple[float, ...], int, QueuedRequest]


class RequestQueue:
    """A heap; what is discarded stays in it, unseen, until it is at the head or most of the heap is such."""

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._heap: list[_Entry] = []
        self._alive: dict[str, int] = {}
        self._entered = 0

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._alive

    def add(self, request: QueuedRequest) -> None:
        """Raises ValueError where its id is in the queue."""
        if request.request_id in self._alive:
            raise ValueError(f"{request.request_id} waits already")
        self._entered += 1
        self._alive[request.request_id] = self._entered
        heapq.heappush(self._heap, (self._ordering.key(request), self._entered, request))

    def discard(self, request_id: str) -> bool:
        """Returns whether it was there."""
        if self._alive.pop(request_id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._alive) + 16:
            self._heap = [entry for entry in self._heap if self._is_alive(entry)]
            heapq.heapify(self._heap)
        return True

    def head(self) -> QueuedRequest | None:
        while self._heap and not self._is_alive(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def head_key(self) -> tuple[float, ...]:
        """Where the head stands. Only of a queue that has one."""
        return self._heap[0][0]

    def pop(self) -> QueuedRequest:
        """Take the head. Raises IndexError from an empty queue."""
        if (request := self.head()) is None:
            raise IndexError("nobody waits")
        heapq.heappop(self._heap)
        del self._alive[request.request_id]
        return request

    def __iter__(self) -> Iterator[QueuedRequest]:
        """In order; without sorting more of the queue than is looked at."""
        self.head()
        # Best-first over the heap's own tree: a child is never before its parent.
        heap = self._heap
        frontier = [(heap[0][:2], 0)] if heap else []
        while frontier:
            _, at = heapq.heappop(frontier)
            if self._is_alive(heap[at]):
                yield heap[at][2]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child][:2], child))

    def _is_alive(self, entry: _Entry) -> bool:
        return self._alive.get(entry[2].request_id) == entry[1]
