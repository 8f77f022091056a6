"""Who gets which slot of an arena: first come first served, all or nothing. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable


class SlotPool:
    """Numbers 0 … slots − 1, handed out to tickets in the order in which they queued.

    The last `reserved` slots are kept from tickets; only `take_reserved` gives them (write-back slots,
    for which decoding never waits). Whoever was granted slots owns them until `release`.
    """

    def __init__(self, slots: int, reserved: int = 0) -> None:
        if slots < 0 or not 0 <= reserved <= slots:
            raise ValueError(
                f"a pool of {slots} slots cannot reserve {reserved}; reserve between 0 and all of them"
            )
        self.total = slots
        self.reserved = reserved
        self._open = slots - reserved
        self._free = list(range(self._open - 1, -1, -1))
        self._free_reserved = list(range(slots - 1, self._open - 1, -1))
        self._taken: set[int] = set()
        self._queue: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def used(self) -> int:
        """Slots that somebody owns, those of the reserve included."""
        return len(self._taken)

    @property
    def reserved_used(self) -> int:
        return self.reserved - len(self._free_reserved)

    @property
    def waiting(self) -> int:
        """Tickets that `grants` has not served yet."""
        return len(self._queue)

    def enqueue(self, ticket: Hashable, n: int) -> None:
        """Ask for `n` slots at once. Raises ValueError where so many can never be had, and for a ticket that
        waits already."""
        if not 0 <= n <= self._open:
            raise ValueError(
                f"{n} slots were asked for, but this pool has {self._open} to give at most; "
                "use a larger buffer or shorter requests"
            )
        if ticket in self._queue:
            raise ValueError(f"ticket {ticket!r} waits already; use one ticket per demand")
        self._queue[ticket] = n

    def cancel(self, ticket: Hashable) -> None:
        """Leave the queue. Does nothing for a ticket that does not wait (any more): what was granted has to
        be released."""
        self._queue.pop(ticket, None)

    def grants(self) -> list[tuple[Hashable, list[int]]]:
        """Serve the queue from its head for as long as the head fits; call after every change."""
        granted: list[tuple[Hashable, list[int]]] = []
        while self._queue:
            ticket, n = next(iter(self._queue.items()))
            if n > len(self._free):
                break
            del self._queue[ticket]
            slots = [self._free.pop() for _ in range(n)]
            self._taken.update(slots)
            granted.append((ticket, slots))
        return granted

    def take_reserved(self) -> int | None:
        """A slot of the reserve, or None where all are taken; never waits."""
        if not self._free_reserved:
            return None
        slot = self._free_reserved.pop()
        self._taken.add(slot)
        return slot

    def release(self, slots: Iterable[int]) -> None:
        """Give slots back, of the reserve or not. Raises ValueError, and changes nothing, where one of them
        is not taken (released twice, or never granted)."""
        given = list(slots)
        wrong = sorted({slot for slot in given if slot not in self._taken})
        if wrong:
            raise ValueError(f"slots {wrong} are not taken: released twice, or of another pool")
        if len(set(given)) != len(given):
            raise ValueError(f"a slot occurs twice among those released: {sorted(given)}")
        self._taken.difference_update(given)
        for slot in reversed(given):
            (self._free if slot < self._open else self._free_reserved).append(slot)
