"""The index against a plain model: what is there, what gives way, and that the capacity holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.kvstore.entry import ENTRY_BYTES
from dualpath.kvstore.index import BlockIndex, BlockName, Evict, Grow, Shrink

SLOT = {"a": 100, "b": 250}
EXTENT = 400


def nobody(_: BlockName) -> bool:
    return False


def key(number: int) -> bytes:
    return bytes([number])


def name(number: int, space: str = "a") -> BlockName:
    return BlockName(space, key(number))


def one_space(slots: int | None) -> BlockIndex:
    capacity = None if slots is None else slots * (SLOT["a"] + ENTRY_BYTES)
    index = BlockIndex(capacity, EXTENT)
    index.open_space("a", SLOT["a"])
    return index


def put(
    index: BlockIndex, block: BlockName, depth: int, now: float, held: set[BlockName] | None = None
) -> list[int] | None:
    """Store a block as a shard does; the slots that were evicted for it, None where there was no room."""
    evicted: list[int] = []
    while not (slots := index.take(block.space, 1)):
        match index.room(block.space, 1, (held or set()).__contains__):
            case Grow(number, count):
                index.add_extent(block.space, number, count)
            case Evict(victims):
                evicted += victims
                index.release(block.space, victims)
            case Shrink():
                continue
            case None:
                return None
    index.insert(block, slots[0], bytes([block.key[0]] * 16), depth, now)
    return evicted


def there(index: BlockIndex, space: str = "a") -> set[int]:
    present = index.present(space, [key(number) for number in range(256)])
    return {number for number in range(256) if present[number]}


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "touch", "remove", "hold", "let go", "damage", "expire"]),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    max_size=60,
)


@dataclass
class Known:
    depth: int
    touched: float


@settings(max_examples=300)
@given(st.integers(0, 9), OPERATIONS)
def test_in_one_namespace_the_oldest_touch_goes_and_of_these_the_deepest(
    slots: int, operations: list[tuple[str, int, int]]
) -> None:
    index = one_space(slots)
    known: dict[bytes, Known] = {}
    held: set[BlockName] = set()
    aside = 0
    for now, (what, number, count) in enumerate(operations, 1):
        block = name(number)
        if what == "put" and block.key not in known:
            free = slots - len(known) - aside
            order = sorted(known, key=lambda k: (known[k].touched, -known[k].depth))
            victim = next((k for k in order if BlockName("a", k) not in held), None)
            done = put(index, block, number, now, held)
            if done is None:
                assert free == 0
                assert aside == 0
                assert victim is None
                continue
            if free == 0:
                assert len(done) == 1
                if aside:
                    aside -= 1
                else:
                    assert victim is not None
                    del known[victim]
            known[block.key] = Known(number, now)
        elif what == "touch":
            chain = [key(n) for n in range(number, min(number + count, 10))]
            index.touch("a", chain, now)
            for k in chain:
                if k in known:
                    known[k].touched = now
        elif what == "remove":
            slot = index.remove(block)
            assert (slot is not None) == (block.key in known)
            if slot is not None:
                index.release("a", [slot])
                del known[block.key]
        elif what == "damage" and (slot := index.remove(block)) is not None:
            over = index.set_aside("a", slot, 2)
            index.release("a", over)
            aside += 1 - len(over)
            assert aside <= 2
            del known[block.key]
        elif what == "expire":
            step = index.untouched("a", now - 5, held.__contains__)
            index.release("a", step.slots)
            gone = 0
            for k in sorted(known, key=lambda k: (known[k].touched, -known[k].depth)):
                if known[k].touched < now - 5 and BlockName("a", k) not in held:
                    del known[k]
                    gone += 1
            assert step.blocks == gone
        elif what == "hold":
            held.add(block)
        elif what == "let go":
            held.discard(block)
        assert there(index) == {k[0] for k in known}
        assert index.counts() == {"a": len(known)}
        assert index.allocated_bytes <= (index.capacity_bytes or 0)
        for k in known:
            slot = index.find(BlockName("a", k))
            assert slot is not None
            assert index.checksum("a", slot) == bytes([k[0]] * 16)
            assert index.depth("a", slot) == known[k].depth


@settings(max_examples=200)
@given(
    st.integers(0, 3000),
    st.lists(
        st.tuples(
            st.sampled_from(["put", "touch", "hold"]), st.sampled_from("ab"), st.integers(0, 9)
        ),
        max_size=60,
    ),
)
def test_two_namespaces_share_a_capacity_and_no_slot_is_given_twice(
    capacity: int, operations: list[tuple[str, str, int]]
) -> None:
    index = BlockIndex(capacity, EXTENT)
    held: set[BlockName] = set()
    for space, size in SLOT.items():
        index.open_space(space, size)
    for now, (what, space, number) in enumerate(operations, 1):
        block = name(number, space)
        if what == "put" and index.find(block) is None:
            before = {b for b in held if index.find(b) is not None}
            if put(index, block, number, now, held) is not None:
                assert index.find(block) is not None
            assert all(index.find(b) is not None for b in before), "what is held stays"
        elif what == "touch":
            index.touch(space, [block.key], now)
        elif what == "hold":
            held.add(block)
        assert index.allocated_bytes <= capacity
        for one in SLOT:
            slots = Counter(index.find(name(n, one)) for n in there(index, one))
            assert not slots or max(slots.values()) == 1


def test_an_old_namespace_gives_its_extents_to_a_new_one() -> None:
    index = BlockIndex(2 * 4 * (SLOT["a"] + ENTRY_BYTES), EXTENT)
    for space, size in SLOT.items():
        index.open_space(space, size)
    for number in range(8):
        put(index, name(number), number, number)
    for number in range(2):
        assert put(index, name(number, "b"), number, 100 + number) is not None
    assert there(index, "b") == {0, 1}
    assert there(index, "a") == {4, 5, 6, 7}


def test_nothing_is_taken_from_under_a_reader() -> None:
    index = one_space(2)
    for number in range(2):
        put(index, name(number), 0, number)
    slot = index.find(name(0))
    assert slot is not None
    index.pin("a", [slot, slot])
    index.unpin("a", [slot])
    assert put(index, name(2), 0, 2) is not None
    assert there(index) == {0, 2}
    index.unpin("a", [slot])
    put(index, name(3), 0, 3)
    assert there(index) == {2, 3}


def test_a_chain_that_is_touched_at_once_loses_its_end_first() -> None:
    index = one_space(4)
    for depth, number in enumerate([3, 2, 1, 0]):
        put(index, name(number), 3 - depth, depth)
    index.touch("a", [key(number) for number in range(4)], 10)
    for number, left in ((4, {0, 1, 2, 4}), (5, {0, 1, 4, 5})):
        put(index, name(number), 0, 10 + number)
        assert there(index) == left


def test_without_a_capacity_nothing_gives_way() -> None:
    index = one_space(None)
    for number in range(100):
        assert put(index, name(number), 0, 0) == []
    assert index.counts() == {"a": 100}


def test_a_block_larger_than_the_capacity_drives_nobody_out() -> None:
    index = BlockIndex(SLOT["b"], EXTENT)
    for space, size in SLOT.items():
        index.open_space(space, size)
    put(index, name(0), 0, 0)
    assert put(index, name(1, "b"), 0, 1) is None
    assert there(index) == {0}


def test_what_is_more_than_a_smaller_capacity_is_cut_and_the_newest_extents_stay() -> None:
    index = one_space(12)
    for number in range(12):
        put(index, name(number), 0, number)
    index.capacity_bytes = 6 * (SLOT["a"] + ENTRY_BYTES)
    steps = []
    while step := index.excess():
        steps.append((step.number, step.slots, step.blocks))
    assert steps == [(0, 0, 4), (1, 2, 2)]
    assert there(index) == {4, 5, 8, 9, 10, 11}
    assert put(index, name(20), 0, 20) != []
    assert there(index) == {5, 8, 9, 10, 11, 20}


def test_extents_without_a_block_are_given_up() -> None:
    index = one_space(None)
    for number in range(8):
        put(index, name(number), 0, number)
    for number in (0, 1, 2, 3, 5):
        slot = index.remove(name(number))
        assert slot is not None
        index.release("a", [slot])
    assert [(step.number, step.slots) for step in index.idle_extents()] == [(0, 0)]
    assert there(index) == {4, 6, 7}
    put(index, name(9), 0, 9)
    assert there(index) == {4, 6, 7, 9}
