"""Who gets which slot of an arena: first come first served, all or nothing. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dualpath.memory.hot import HotBlocks


class Granted(NamedTuple):
    """A ticket's slots; slot number `i` of those in `hot` still holds the block that was asked for as key `i`."""

    ticket: Hashable
    slots: list[int]
    hot: frozenset[int]


class _Demand(NamedTuple):
    slots: int
    keys: tuple[bytes, ...]


class SlotPool:
    """Numbers 0 … slots − 1, handed out to tickets in the order in which they queued.

    The last `reserved` slots are kept from tickets; only `take_reserved` gives them (write-back slots,
    for which decoding never waits). Whoever was granted slots owns them until `release`.

    A slot that is given back with a block in it stays *clean*: it is as free as any other, and given out when no
    empty one is left, the one given back longest ago first; until then it goes to whoever asks for its block.
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
        self._hot = HotBlocks()
        self._queue: OrderedDict[Hashable, _Demand] = OrderedDict()
        self.hot_hits = 0
        """Blocks that were granted clean to whoever asked for them."""
        self.hot_evicted = 0
        """Blocks that gave way to others."""

    @property
    def used(self) -> int:
        """Slots that somebody owns, those of the reserve included."""
        return len(self._taken)

    @property
    def reserved_used(self) -> int:
        return self.reserved - len(self._free_reserved)

    @property
    def clean(self) -> int:
        """Free slots that hold a block."""
        return len(self._hot)

    @property
    def waiting(self) -> int:
        """Tickets that `grants` has not served yet."""
        return len(self._queue)

    def enqueue(self, ticket: Hashable, n: int, keys: Sequence[bytes] = ()) -> None:
        """Ask for `n` slots at once; with `keys`, at most n different ones, for the clean slots of these blocks
        in their places. Raises ValueError where so many can never be had, and for a ticket that waits already."""
        if not 0 <= n <= self._open:
            raise ValueError(
                f"{n} slots were asked for, but this pool has {self._open} to give at most; "
                "use a larger buffer or shorter requests"
            )
        if ticket in self._queue:
            raise ValueError(f"ticket {ticket!r} waits already; use one ticket per demand")
        if len(keys) > n:
            raise ValueError(f"{len(keys)} blocks do not fit into {n} slots; ask for as many slots")
        self._queue[ticket] = _Demand(n, tuple(keys))

    def cancel(self, ticket: Hashable) -> None:
        """Leave the queue. Does nothing for a ticket that does not wait (any more): what was granted has to
        be released."""
        self._queue.pop(ticket, None)

    def grants(self) -> list[Granted]:
        """Serve the queue from its head for as long as the head fits; call after every change."""
        granted: list[Granted] = []
        while self._queue:
            ticket, demand = next(iter(self._queue.items()))
            if demand.slots > len(self._free) + len(self._hot):
                break
            del self._queue[ticket]
            granted.append(Granted(ticket, *self._take(demand)))
        return granted

    def _take(self, demand: _Demand) -> tuple[list[int], frozenset[int]]:
        found = [self._hot.claim(key) for key in demand.keys] if self._hot else []
        hot = frozenset(index for index, slot in enumerate(found) if slot is not None)
        found += [None] * (demand.slots - len(found))
        slots = [self._any_free() if slot is None else slot for slot in found]
        self._taken.update(slots)
        self.hot_hits += len(hot)
        return slots, hot

    def _any_free(self) -> int:
        if self._free:
            return self._free.pop()
        self.hot_evicted += 1
        return self._hot.evict()

    def take_reserved(self) -> int | None:
        """A slot of the reserve, or None where all are taken; never waits."""
        if not self._free_reserved:
            return None
        slot = self._free_reserved.pop()
        self._taken.add(slot)
        return slot

    def release(self, slots: Iterable[int], clean: Mapping[int, bytes] | None = None) -> None:
        """Give slots back, of the reserve or not. `clean` says which of them hold a whole block that is right, and
        its key; of these, later ones give way before earlier ones. What is in the reserve is not kept.

        Raises ValueError, and changes nothing, where one of them is not taken (released twice, or never granted)."""
        given = list(slots)
        wrong = sorted({slot for slot in given if slot not in self._taken})
        if wrong:
            raise ValueError(f"slots {wrong} are not taken: released twice, or of another pool")
        if len(set(given)) != len(given):
            raise ValueError(f"a slot occurs twice among those released: {sorted(given)}")
        self._taken.difference_update(given)
        kept = clean or {}
        for slot in reversed(given):
            if slot >= self._open:
                self._free_reserved.append(slot)
            elif slot not in kept:
                self._free.append(slot)
            elif (before := self._hot.keep(kept[slot], slot)) is not None:
                self._free.append(before)
