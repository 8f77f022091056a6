from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dualpath.memory.slots import SlotPool


def test_the_head_that_does_not_fit_blocks_those_behind_it() -> None:
    pool = SlotPool(4)
    pool.enqueue("a", 3)
    pool.enqueue("b", 2)
    pool.enqueue("c", 1)
    [(ticket, slots, _)] = pool.grants()
    assert (ticket, len(slots)) == ("a", 3)
    assert pool.waiting == 2
    pool.release(slots)
    assert [ticket for ticket, _, _ in pool.grants()] == ["b", "c"]


def test_cancelling_the_head_lets_those_behind_it_in() -> None:
    pool = SlotPool(4)
    pool.enqueue("a", 3)
    pool.grants()
    pool.enqueue("b", 2)
    pool.enqueue("c", 1)
    pool.cancel("b")
    pool.cancel("never queued")
    assert [ticket for ticket, _, _ in pool.grants()] == ["c"]


def test_the_reserve_is_only_for_those_who_never_wait() -> None:
    pool = SlotPool(4, reserved=2)
    with pytest.raises(ValueError, match="3 slots were asked for, but this pool has 2"):
        pool.enqueue("a", 3)
    pool.enqueue("a", 2)
    [(_, slots, _)] = pool.grants()
    reserve = [pool.take_reserved(), pool.take_reserved()]
    assert {*slots, *reserve} == {0, 1, 2, 3}
    assert pool.take_reserved() is None
    assert (pool.used, pool.reserved_used) == (4, 2)
    pool.release(slot for slot in reserve if slot is not None)
    assert (pool.used, pool.reserved_used) == (2, 0)
    pool.enqueue("b", 1)
    assert pool.grants() == []


@pytest.mark.parametrize(
    ("released", "words"),
    [([0, 0], "twice"), ([3], "not taken"), ([-1], "not taken"), ([99], "not taken")],
)
def test_a_wrong_release_raises_and_changes_nothing(released: list[int], words: str) -> None:
    pool = SlotPool(4)
    pool.enqueue("a", 2)
    [(_, slots, _)] = pool.grants()
    assert slots == [0, 1]
    with pytest.raises(ValueError, match=words):
        pool.release([1, *released] if released != [0, 0] else released)
    assert pool.used == 2
    pool.release(slots)
    with pytest.raises(ValueError, match="not taken"):
        pool.release(slots)


def test_a_ticket_waits_once() -> None:
    pool = SlotPool(1)
    pool.enqueue("a", 1)
    with pytest.raises(ValueError, match="one ticket per demand"):
        pool.enqueue("a", 1)


def test_a_pool_cannot_reserve_more_than_it_has() -> None:
    with pytest.raises(ValueError, match="cannot reserve 3"):
        SlotPool(2, 3)


def granted(pool: SlotPool, n: int, *keys: bytes) -> tuple[list[int], frozenset[int]]:
    pool.enqueue("asks", n, keys)
    [(_, slots, hot)] = pool.grants()
    return slots, hot


def test_a_clean_slot_goes_to_whoever_asks_for_its_block() -> None:
    pool = SlotPool(6)
    slots, _ = granted(pool, 4)
    pool.release(slots, {slots[1]: b"one", slots[2]: b"two"})
    assert (pool.used, pool.clean) == (0, 2)
    again, hot = granted(pool, 3, b"none", b"two", b"one")
    assert hot == {1, 2}
    assert again[1:] == [slots[2], slots[1]]
    assert (pool.used, pool.clean, pool.hot_hits, pool.hot_evicted) == (3, 0, 2, 0)


def test_clean_slots_are_free_and_the_one_given_back_longest_ago_gives_way_first() -> None:
    pool = SlotPool(4)
    slots, _ = granted(pool, 4)
    pool.release(slots[:2], {slots[0]: b"a0", slots[1]: b"a1"})
    pool.release(slots[2:], {slots[2]: b"b0", slots[3]: b"b1"})
    # All that was found is given back together then, and counts as one chain.
    for count, left in ((1, {b"a0", b"b0", b"b1"}), (3, {b"a0"})):
        taken, hot = granted(pool, count)
        assert not hot
        pool.release(taken)
        taken, hot = granted(pool, 4, b"a0", b"a1", b"b0", b"b1")
        found = {key for index, key in enumerate((b"a0", b"a1", b"b0", b"b1")) if index in hot}
        assert found == left
        pool.release(taken, {taken[index]: (b"a0", b"a1", b"b0", b"b1")[index] for index in hot})


def test_a_block_is_kept_once() -> None:
    pool = SlotPool(2)
    slots, _ = granted(pool, 2)
    pool.release(slots, dict.fromkeys(slots, b"same"))
    assert pool.clean == 1
    assert len(granted(pool, 2)[0]) == 2


def test_what_is_in_the_reserve_is_not_kept() -> None:
    pool = SlotPool(2, reserved=1)
    slot = pool.take_reserved()
    assert slot is not None
    pool.release([slot], {slot: b"block"})
    assert (pool.clean, pool.reserved_used) == (0, 0)
    assert pool.take_reserved() == slot


class PoolMachine(RuleBasedStateMachine):
    """Against a model (a queue, who owns what, what is in every slot), and a pool that keeps nothing: the hot tier
    delays nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(10, reserved=3)
        self.plain = SlotPool(10, reserved=3)
        self.plain_owned: dict[int, list[int]] = {}
        self.queue: list[tuple[int, int]] = []
        self.keys: dict[int, tuple[bytes, ...]] = {}
        self.owned: list[tuple[int, list[int]]] = []
        self.content: dict[int, bytes] = {}
        self.number = 0

    @rule(n=st.integers(0, 7), data=st.data())
    def enqueue(self, n: int, data: st.DataObject) -> None:
        self.number += 1
        chosen = data.draw(st.lists(st.integers(0, 8), max_size=n, unique=True))
        self.keys[self.number] = tuple(bytes([key]) for key in chosen)
        self.pool.enqueue(self.number, n, self.keys[self.number])
        self.plain.enqueue(self.number, n)
        self.queue.append((self.number, n))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.queue:
            entry = data.draw(st.sampled_from(self.queue))
            self.queue.remove(entry)
            self.pool.cancel(entry[0])
            self.plain.cancel(entry[0])

    @rule()
    def grant(self) -> None:
        free = 7 - sum(len([s for s in slots if s < 7]) for _, slots in self.owned)
        plain = {ticket: slots for ticket, slots, _ in self.plain.grants()}
        served = []
        for ticket, slots, hot in self.pool.grants():
            assert (ticket, len(slots)) == self.queue.pop(0)
            assert isinstance(ticket, int)
            assert all(slot < 7 for slot in slots)
            for index, slot in enumerate(slots):
                if index in hot:
                    assert self.content[slot] == self.keys[ticket][index]
                else:
                    self.content[slot] = b"overwritten"
            free -= len(slots)
            self.owned.append((ticket, slots))
            served.append(ticket)
        assert served == list(plain)
        self.plain_owned |= {int(str(ticket)): slots for ticket, slots in plain.items()}
        assert not self.queue or self.queue[0][1] > free

    @rule()
    def take(self) -> None:
        taken = sum(slot >= 7 for _, slots in self.owned for slot in slots)
        slot, other = self.pool.take_reserved(), self.plain.take_reserved()
        assert (slot is None) == (other is None) == (taken == 3)
        if slot is not None and other is not None:
            self.number += 1
            self.owned.append((self.number, [slot]))
            self.plain_owned[self.number] = [other]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.owned:
            ticket, slots = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
            blocks = self.keys.get(ticket, (b"a block of the reserve",))
            right = data.draw(st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks)))
            clean = {s: key for s, key, there in zip(slots, blocks, right, strict=False) if there}
            self.content |= clean
            self.pool.release(slots, clean)
            self.plain.release(self.plain_owned.pop(ticket))

    @invariant()
    def counts_agree(self) -> None:
        slots = [slot for _, slots in self.owned for slot in slots]
        assert len(slots) == len(set(slots)) == self.pool.used == self.plain.used
        assert self.pool.waiting == len(self.queue) == self.plain.waiting
        assert self.pool.clean <= 7 - sum(slot < 7 for slot in slots)


TestPool = PoolMachine.TestCase
