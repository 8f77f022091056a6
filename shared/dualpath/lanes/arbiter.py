"""Which chunk goes next: what every arbiter has, and weighted round robin over lanes (paper §4). Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Ticket(Generic[T]):
    """A queued chunk. `item` is the caller's; the rest belongs to the arbiter."""

    __slots__ = ("item", "lane", "nbytes", "priority")

    def __init__(self, item: T, lane: int, nbytes: int, priority: int) -> None:
        self.item = item
        self.lane = lane
        self.nbytes = nbytes
        self.priority = priority


class Arbiter(ABC, Generic[T]):
    """Queues of chunks, and the choice among lanes, which subclasses make.

    Lanes are numbered from 0. Inside a lane lower priorities go first, each FIFO. Each lane's account is in
    bytes and carries over what a chunk took too much, so shares hold for any mix of sizes.
    """

    def __init__(self, lanes: int, priorities: int = 2) -> None:
        self._queues: list[tuple[OrderedDict[Ticket[T], None], ...]] = [
            tuple(OrderedDict() for _ in range(priorities)) for _ in range(lanes)
        ]
        self._waiting = [0] * lanes
        self._waiting_bytes = [0] * lanes
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def waiting(self, lane: int) -> int:
        """Chunks that wait in `lane`."""
        return self._waiting[lane]

    def waiting_bytes(self, lane: int) -> int:
        """Their bytes."""
        return self._waiting_bytes[lane]

    @property
    def contended(self) -> bool:
        """More than one lane has something waiting."""
        return self._total > max(self._waiting)

    def push(self, item: T, lane: int, nbytes: int, priority: int = 0) -> Ticket[T]:
        """Queue a chunk; the ticket is what `cancel` takes."""
        ticket = Ticket(item, lane, nbytes, priority)
        self._queues[lane][priority][ticket] = None
        self._count(ticket, 1)
        return ticket

    def cancel(self, ticket: Ticket[T]) -> bool:
        """Take a chunk out of the queue; False where it is not in it any more. Costs its lane nothing."""
        queue = self._queues[ticket.lane][ticket.priority]
        if ticket not in queue:
            return False
        del queue[ticket]
        self._count(ticket, -1)
        return True

    def peek(self) -> Ticket[T] | None:
        """The chunk that goes next, or None where nothing waits. A push or a cancel may change it."""
        if not self._total:
            return None
        for queue in self._queues[self._choose()]:
            if queue:
                return next(iter(queue))
        raise AssertionError("the chosen lane has something waiting")

    def pop(self) -> Ticket[T] | None:
        """The chunk that goes now; its lane pays for it."""
        ticket = self.peek()
        if ticket is not None:
            self._pay(ticket.lane, ticket.nbytes)
            del self._queues[ticket.lane][ticket.priority][ticket]
            self._count(ticket, -1)
        return ticket

    @abstractmethod
    def give_back(self, lane: int, nbytes: int) -> None:
        """A chunk that was popped is not sent after all: its lane gets back what it paid."""

    @abstractmethod
    def _choose(self) -> int:
        """The lane that goes next, of those that have something; asked only when there is one."""

    @abstractmethod
    def _pay(self, lane: int, nbytes: int) -> None:
        """`lane`, chosen just now, sends a chunk, which is still queued."""

    def _count(self, ticket: Ticket[T], sign: int) -> None:
        self._waiting[ticket.lane] += sign
        self._waiting_bytes[ticket.lane] += sign * ticket.nbytes
        self._total += sign


class WeightedRoundRobin(Arbiter[T]):
    """Serves the lanes that have something in proportion to their weights, byte for byte.

    Each round gives a lane `weight / sum(weights)` of a quantum as credit. A lane may send while it has
    credit, lower lanes first, and what a chunk takes beyond it is carried as debt. Rounds in which nobody
    could send are skipped: it is work-conserving, and as every round gives every lane something, nobody
    starves. A lane without chunks keeps one round's credit at most, with which it goes at once when it
    comes back, and owes one chunk at most.
    """

    def __init__(self, weights: Sequence[int], quantum_bytes: int, priorities: int = 2) -> None:
        if not weights or any(weight < 1 for weight in weights):
            raise ValueError(f"every lane needs a weight of at least 1, not {list(weights)}")
        if quantum_bytes < 1:
            raise ValueError(f"a quantum needs at least one byte, not {quantum_bytes}")
        super().__init__(len(weights), priorities)
        # Credit is counted in bytes times the sum of weights, which keeps it whole.
        self._per_round = [weight * quantum_bytes for weight in weights]
        self._credit = list(self._per_round)
        self._byte_cost = sum(weights)

    def give_back(self, lane: int, nbytes: int) -> None:
        credit = self._credit[lane] + nbytes * self._byte_cost
        self._credit[lane] = min(credit, self._per_round[lane])

    def _choose(self) -> int:
        return self._next()[0]

    def _pay(self, lane: int, nbytes: int) -> None:
        rounds = self._next()[1]
        if rounds:
            for number, gain in enumerate(self._per_round):
                self._credit[number] = min(self._credit[number] + rounds * gain, gain)
        self._credit[lane] -= nbytes * self._byte_cost

    def _next(self) -> tuple[int, int]:
        """The lane that goes next, and how many rounds are over then: those in which nobody comes into
        credit, and the one in which somebody does. They are played only when a chunk goes, or a lane that
        comes meanwhile would find the others in credit."""
        for lane in self._lanes():
            if self._credit[lane] > 0:
                return lane, 0
        return min(
            ((lane, -self._credit[lane] // self._per_round[lane] + 1) for lane in self._lanes()),
            key=lambda choice: choice[1],
        )

    def _lanes(self) -> Iterator[int]:
        """Those that have something."""
        return (lane for lane, waiting in enumerate(self._waiting) if waiting)
