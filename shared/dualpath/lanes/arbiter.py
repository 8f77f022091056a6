"""Which chunk goes next: weighted round robin over lanes, with deficits carried (paper §4). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """A queued chunk. `item` is the caller's; the rest belongs to the arbiter."""

    __slots__ = ("item", "lane", "nbytes", "queued")

    def __init__(self, item: T, lane: int, nbytes: int) -> None:
        self.item = item
        self.lane = lane
        self.nbytes = nbytes
        self.queued = True


class Arbiter(Generic[T]):
    """Chooses among the lanes that have something, in proportion to their weights, byte for byte.

    Each round gives a lane `weight / sum(weights)` of a quantum as credit. A lane may send while it has
    credit, and what a chunk takes beyond it is carried as debt, so that shares are exact over time whatever
    the chunks' sizes. Rounds in which nobody could send are skipped: it is work-conserving. A lane without
    chunks gathers no credit, and owes one chunk at most. Inside a lane lower priorities go first, each FIFO.
    """

    def __init__(self, weights: Sequence[int], quantum_bytes: int, priorities: int = 2) -> None:
        if not weights or any(weight < 1 for weight in weights):
            raise ValueError(f"every lane needs a weight of at least 1, not {list(weights)}")
        if quantum_bytes < 1:
            raise ValueError(f"a quantum needs at least one byte, not {quantum_bytes}")
        self._queues: list[tuple[deque[Ticket[T]], ...]] = [
            tuple(deque() for _ in range(priorities)) for _ in weights
        ]
        # Credit is counted in bytes times the sum of weights, which keeps it whole.
        self._credit = [0] * len(weights)
        self._per_round = [weight * quantum_bytes for weight in weights]
        self._byte_cost = sum(weights)
        self._waiting = [0] * len(weights)
        self._turn = 0

    def __len__(self) -> int:
        return sum(self._waiting)

    def waiting(self, lane: int) -> int:
        """Chunks that wait in `lane`."""
        return self._waiting[lane]

    def push(self, item: T, lane: int, nbytes: int, priority: int = 0) -> Ticket[T]:
        """Queue a chunk; the ticket is what `cancel` takes."""
        ticket = Ticket(item, lane, nbytes)
        self._queues[lane][priority].append(ticket)
        self._waiting[lane] += 1
        return ticket

    def cancel(self, ticket: Ticket[T]) -> bool:
        """Take a chunk out of the queue; False where it is not in it any more. Costs no credit."""
        if not ticket.queued:
            return False
        ticket.queued = False
        lane = ticket.lane
        self._waiting[lane] -= 1
        for queue in self._queues[lane]:
            while queue and not queue[0].queued:
                queue.popleft()
        return True

    def pop(self) -> Ticket[T] | None:
        """The chunk that goes now, or None where nothing waits."""
        active = [lane for lane, count in enumerate(self._waiting) if count]
        if not active:
            return None
        self._skip_idle_rounds(active)
        lane = self._next_lane()
        ticket = self._take(lane)
        self._credit[lane] -= ticket.nbytes * self._byte_cost
        self._waiting[lane] -= 1
        return ticket

    def _skip_idle_rounds(self, active: list[int]) -> None:
        """Play all rounds in which no active lane comes into credit, at once."""
        rounds = min(
            0 if self._credit[lane] > 0 else -self._credit[lane] // self._per_round[lane] + 1
            for lane in active
        )
        if not rounds:
            return
        for lane, waiting in enumerate(self._waiting):
            credit = self._credit[lane] + rounds * self._per_round[lane]
            self._credit[lane] = credit if waiting else min(credit, 0)

    def _next_lane(self) -> int:
        """The lane whose turn it is stays on while it has credit."""
        lanes = len(self._credit)
        for step in range(lanes):
            lane = (self._turn + step) % lanes
            if self._waiting[lane] and self._credit[lane] > 0:
                self._turn = lane
                return lane
        raise AssertionError("after skipping rounds some waiting lane has credit")

    def _take(self, lane: int) -> Ticket[T]:
        for queue in self._queues[lane]:
            while queue:
                ticket = queue.popleft()
                if ticket.queued:
                    ticket.queued = False
                    return ticket
        raise AssertionError("a lane that counts waiting chunks holds one")
