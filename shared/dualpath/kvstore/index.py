"""Which blocks a shard holds and in which slots, and what gives way where it may hold no more. Pure.

Blocks of one size lie in *slots* of *extents*; an extent belongs to one namespace until it is given up. The
blocks that were touched longest ago give way, of those touched together the deepest of their chain first: what
is left of a chain is a prefix. Leased ones never do, and nothing is taken from under a reader.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualpath.kvstore.entry import ENTRY_BYTES

SLOT_BITS = 20
MAX_SLOTS = 1 << SLOT_BITS
EXTENT_BYTES = 16 << 20
GROWTH = 16
"""A namespace grows by a sixteenth of what it has, or by EXTENT_BYTES: a terabyte is in 160 extents."""


class BlockName(NamedTuple):
    """A block of one namespace; `space` is the name of the namespace's directory."""

    space: str
    key: bytes


Held = Callable[[BlockName], bool]
_DEPTH = itemgetter(0)


@dataclass(frozen=True)
class Grow:
    """Make an extent, then `add_extent`."""

    number: int
    slots: int


@dataclass(frozen=True)
class Evict:
    """These slots' blocks are no longer known: clear their entries on the disk, then `release` them."""

    slots: list[int]
    blocks: int


@dataclass(frozen=True)
class Shrink:
    """Cut an extent to its first `slots` slots (0: remove it); its other blocks are no longer known."""

    space: str
    number: int
    slots: int
    blocks: int


Step = Grow | Evict | Shrink


class _Extent:
    """What is known of the slots of one extent."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.keys: list[bytes | None] = [None] * slots
        self.checksums = bytearray(16 * slots)
        self.touched = array("d", bytes(8 * slots))
        self.depths = array("I", bytes(4 * slots))


class _Space:
    """One namespace. `blocks` are in the order in which they give way."""

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = 0
        self.next_number = 0
        self.blocks: OrderedDict[bytes, int] = OrderedDict()
        self.extents: dict[int, _Extent] = {}
        self.free: list[int] = []
        self.aside: deque[int] = deque()
        self.pins: Counter[int] = Counter()

    @property
    def slot_cost(self) -> int:
        return self.slot_bytes + ENTRY_BYTES

    def place(self, slot: int) -> tuple[_Extent, int]:
        return self.extents[slot >> SLOT_BITS], slot & (MAX_SLOTS - 1)

    def touched(self, slot: int) -> float:
        extent, at = self.place(slot)
        return extent.touched[at]

    def forget(self, key: bytes) -> int:
        slot = self.blocks.pop(key)
        extent, at = self.place(slot)
        extent.keys[at] = None
        return slot

    def keys_of(self, number: int) -> list[bytes]:
        return [key for key in self.extents[number].keys if key is not None]


class BlockIndex:
    """Blocks and the slots that they are in, those being written and those that are free."""

    def __init__(self, capacity_bytes: int | None = None, extent_bytes: int = EXTENT_BYTES) -> None:
        """`capacity_bytes` bounds all extents, tables included. Without it nothing gives way."""
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self._extent_bytes = extent_bytes
        self._spaces: dict[str, _Space] = {}

    # ── namespaces and extents ─────────────────────────────────────────────────────────────────────
    def open_space(self, space: str, slot_bytes: int) -> None:
        """Know a namespace; one that is known already stays as it is."""
        self._spaces.setdefault(space, _Space(slot_bytes))

    def spaces(self) -> list[str]:
        return list(self._spaces)

    def counts(self) -> dict[str, int]:
        """Blocks by namespace."""
        return {name: len(space.blocks) for name, space in self._spaces.items()}

    def add_extent(
        self, space: str, number: int, slots: int, taken: frozenset[int] = frozenset()
    ) -> None:
        """All of its slots are free but those `taken`, whose blocks (`insert`) or damage (`set_aside`) are told
        next."""
        home, first = self._spaces[space], number << SLOT_BITS
        home.extents[number] = _Extent(slots)
        home.next_number = max(home.next_number, number + 1)
        home.slots += slots
        if len(taken) < slots:
            home.free.extend(
                slot for slot in range(first + slots - 1, first - 1, -1) if slot not in taken
            )
        self.allocated_bytes += slots * home.slot_cost

    # ── blocks ─────────────────────────────────────────────────────────────────────────────────────
    def find(self, name: BlockName) -> int | None:
        """The slot of a block that is there."""
        home = self._spaces.get(name.space)
        return None if home is None else home.blocks.get(name.key)

    def slots(self, space: str, keys: Sequence[bytes]) -> list[int | None]:
        """The slots of a namespace's blocks, None of those that are not there."""
        home = self._spaces.get(space)
        return [None] * len(keys) if home is None else list(map(home.blocks.get, keys))

    def present(self, space: str, keys: Sequence[bytes]) -> bytes:
        """One byte per key of a namespace: 1 where the block is there, else 0."""
        home = self._spaces.get(space)
        return bytes(len(keys)) if home is None else bytes(key in home.blocks for key in keys)

    def checksum(self, space: str, slot: int) -> bytes:
        """The checksum that a slot's block was stored with."""
        extent, at = self._spaces[space].place(slot)
        return bytes(extent.checksums[16 * at : 16 * at + 16])

    def depth(self, space: str, slot: int) -> int:
        extent, at = self._spaces[space].place(slot)
        return extent.depths[at]

    def insert(
        self, name: BlockName, slot: int, checksum: bytes, depth: int, touched: float
    ) -> None:
        """A block, not known before, is in `slot`; it counts as touched last."""
        home = self._spaces[name.space]
        extent, at = home.place(slot)
        extent.keys[at] = name.key
        extent.checksums[16 * at : 16 * at + 16] = checksum
        extent.depths[at] = depth
        extent.touched[at] = touched
        home.blocks[name.key] = slot

    def load(
        self, space: str, keys: Sequence[bytes], slots: Sequence[int], rows: NDArray[np.void]
    ) -> None:
        """Many blocks at once, of a namespace that holds none, in the order in which they give way; `rows` are
        their entries (see `entry`)."""
        home = self._spaces[space]
        home.blocks.update(zip(keys, slots, strict=True))
        numbers = np.asarray(slots, np.int64)
        order = np.argsort(numbers)
        numbers = numbers[order]
        for number, extent in home.extents.items():
            first, end = np.searchsorted(
                numbers, [number << SLOT_BITS, (number + 1) << SLOT_BITS]
            ).tolist()
            here, places = order[first:end], numbers[first:end] & (MAX_SLOTS - 1)
            own = rows[here]
            np.frombuffer(extent.touched, np.float64)[places] = own["touched"]
            np.frombuffer(extent.depths, np.uint32)[places] = own["depth"]
            np.frombuffer(extent.checksums, "V16")[places] = own["checksum"]
            for index, at in zip(here.tolist(), places.tolist(), strict=True):
                extent.keys[at] = keys[index]

    def remove(self, name: BlockName) -> int | None:
        """Forget a block; its slot is the caller's now. None where it is not there."""
        home = self._spaces.get(name.space)
        return None if home is None or name.key not in home.blocks else home.forget(name.key)

    def touch(self, space: str, keys: Sequence[bytes], now: float) -> None:
        """Count the blocks of a chain as used at once, those that are there."""
        home = self._spaces.get(space)
        if home is None:
            return
        blocks, extents, mask = home.blocks, home.extents, MAX_SLOTS - 1
        found: list[tuple[int, bytes]] = []
        for key in keys:
            if (slot := blocks.get(key)) is not None:
                extent, at = extents[slot >> SLOT_BITS], slot & mask
                extent.touched[at] = now
                found.append((extent.depths[at], key))
        # Stable: of equal depths the first of the chain stay longest.
        found.sort(key=_DEPTH)
        for _, key in reversed(found):
            blocks.move_to_end(key)

    # ── slots ──────────────────────────────────────────────────────────────────────────────────────
    def take(self, space: str, count: int) -> list[int]:
        """Up to `count` free slots, the caller's until `insert`, `set_aside` or `release`."""
        free = self._spaces[space].free
        return [free.pop() for _ in range(min(count, len(free)))]

    def release(self, space: str, slots: Sequence[int]) -> None:
        """Slots without an entry on the disk are free again."""
        home = self._spaces[space]
        home.free.extend(slot for slot in reversed(slots) if slot >> SLOT_BITS in home.extents)

    def set_aside(self, space: str, slot: int, most: int) -> list[int]:
        """A slot holds a damaged block. Returns those that are too many with it, the oldest: clear and release."""
        home = self._spaces[space]
        home.aside.append(slot)
        over = [old for old in home.aside if old not in home.pins][: max(0, len(home.aside) - most)]
        home.aside = deque(old for old in home.aside if old not in over)
        return over

    def aside(self, space: str) -> list[int]:
        """Slots of damaged blocks."""
        return list(self._spaces[space].aside)

    def pin(self, space: str, slots: Sequence[int]) -> None:
        """Somebody reads these slots of a namespace that is known: what is in them stays."""
        self._spaces[space].pins.update(slots)

    def unpin(self, space: str, slots: Sequence[int]) -> None:
        pins = self._spaces[space].pins
        for slot in slots:
            if pins[slot] == 1:
                del pins[slot]
            else:
                pins[slot] -= 1

    # ── what gives way ─────────────────────────────────────────────────────────────────────────────
    def room(self, space: str, count: int, held: Held, *, may_grow: bool = True) -> Step | None:
        """The next step towards `count` slots in a namespace that has none free, until there are some; None
        where there is none to take."""
        home = self._spaces[space]
        if may_grow and (slots := self._growth(home)):
            return Grow(home.next_number, slots)
        if self.capacity_bytes is not None and home.slot_cost > self.capacity_bytes:
            return None
        if aside := [slot for slot in home.aside if slot not in home.pins][:count]:
            home.aside = deque(slot for slot in home.aside if slot not in aside)
            return Evict(aside, 0)
        # Without a new extent, what another namespace gives up is of no use.
        elsewhere = self._oldest_elsewhere(space, held) if may_grow else None
        limit = elsewhere[0] if elsewhere else float("inf")
        victims: list[bytes] = []
        for key in self._evictable(space, held):
            if len(victims) == count or home.touched(home.blocks[key]) > limit:
                break
            victims.append(key)
        if victims:
            return Evict([home.forget(key) for key in victims], len(victims))
        return self._cut(elsewhere[1], elsewhere[2], 0) if elsewhere else None

    def untouched(self, space: str, since: float, held: Held) -> Evict:
        """The blocks of a namespace that nobody touched since then."""
        home = self._spaces[space]
        victims: list[bytes] = []
        for key in self._evictable(space, held):
            if home.touched(home.blocks[key]) >= since:
                break
            victims.append(key)
        return Evict([home.forget(key) for key in victims], len(victims))

    def excess(self) -> Shrink | None:
        """The next extent to cut so that the extents fit into the capacity, before anybody uses them."""
        over = self.allocated_bytes - (self.capacity_bytes or self.allocated_bytes)
        if over <= 0:
            return None
        _, space, number = min(
            (max(home.extents[number].touched), name, number)
            for name, home in self._spaces.items()
            for number in home.extents
        )
        home = self._spaces[space]
        return self._cut(
            space, number, max(0, home.extents[number].slots - -(-over // home.slot_cost))
        )

    def idle_extents(self) -> list[Shrink]:
        """Give up every extent that holds no block and is not in anybody's hands."""
        steps = []
        for name, home in self._spaces.items():
            free = Counter(slot >> SLOT_BITS for slot in home.free)
            for number, slots in free.items():
                if slots == home.extents[number].slots:
                    steps.append(self._cut(name, number, 0))
        return steps

    def reclaim(self, space: str) -> Evict:
        """The slots of all damaged blocks that nobody reads."""
        home = self._spaces[space]
        slots = [slot for slot in home.aside if slot not in home.pins]
        home.aside = deque(slot for slot in home.aside if slot in home.pins)
        return Evict(slots, 0)

    def drop(self, space: str) -> list[Shrink]:
        """Forget a namespace that nobody uses."""
        steps = [self._cut(space, number, 0) for number in list(self._spaces[space].extents)]
        del self._spaces[space]
        return steps

    def _growth(self, home: _Space) -> int:
        """Slots of the next extent, as many as there is room for."""
        wanted = max(self._extent_bytes, home.slots * home.slot_bytes // GROWTH) // home.slot_bytes
        slots = min(max(wanted, 1), MAX_SLOTS)
        if self.capacity_bytes is None:
            return slots
        return max(0, min(slots, (self.capacity_bytes - self.allocated_bytes) // home.slot_cost))

    def _evictable(self, space: str, held: Held) -> Iterator[bytes]:
        """Blocks that may give way, in order."""
        home = self._spaces[space]
        for key, slot in home.blocks.items():
            if slot not in home.pins and not held(BlockName(space, key)):
                yield key

    def _oldest_elsewhere(self, space: str, held: Held) -> tuple[float, str, int] | None:
        """An extent of another namespace that may go: the one with the oldest block, and when that was touched."""
        found: list[tuple[float, str, int]] = []
        for name, home in self._spaces.items():
            if name == space:
                continue
            free = Counter(slot >> SLOT_BITS for slot in home.free)
            empty = [n for n, extent in home.extents.items() if free[n] == extent.slots]
            if empty:
                return 0.0, name, empty[0]
            refused: set[int] = set()
            for key in self._evictable(name, held):
                slot = home.blocks[key]
                number = slot >> SLOT_BITS
                if number in refused:
                    continue
                if self._may_go(name, number, free[number], held):
                    found.append((home.touched(slot), name, number))
                    break
                refused.add(number)
        return min(found, default=None)

    def _may_go(self, space: str, number: int, free: int, held: Held) -> bool:
        """Whether nobody needs anything in an extent, and no slot of it is in anybody's hands."""
        home = self._spaces[space]
        keys = home.keys_of(number)
        aside = sum(slot >> SLOT_BITS == number for slot in home.aside)
        return (
            free + aside + len(keys) == home.extents[number].slots
            and not any(slot >> SLOT_BITS == number for slot in home.pins)
            and not any(held(BlockName(space, key)) for key in keys)
        )

    def _cut(self, space: str, number: int, slots: int) -> Shrink:
        home, first = self._spaces[space], number << SLOT_BITS
        extent, end = home.extents[number], first + slots
        gone = range(end, first + extent.slots)
        lost = [key for key in extent.keys[slots:] if key is not None]
        for key in lost:
            home.forget(key)
        home.free = [slot for slot in home.free if slot not in gone]
        home.aside = deque(slot for slot in home.aside if slot not in gone)
        home.slots -= extent.slots - slots
        self.allocated_bytes -= (extent.slots - slots) * home.slot_cost
        if slots:
            extent.slots = slots
            del extent.keys[slots:], extent.touched[slots:], extent.depths[slots:]
            del extent.checksums[16 * slots :]
        else:
            del home.extents[number]
        return Shrink(space, number, slots, len(lost))
