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
    [(ticket, slots)] = pool.grants()
    assert (ticket, len(slots)) == ("a", 3)
    assert pool.waiting == 2
    pool.release(slots)
    assert [ticket for ticket, _ in pool.grants()] == ["b", "c"]


def test_cancelling_the_head_lets_those_behind_it_in() -> None:
    pool = SlotPool(4)
    pool.enqueue("a", 3)
    pool.grants()
    pool.enqueue("b", 2)
    pool.enqueue("c", 1)
    pool.cancel("b")
    pool.cancel("never queued")
    assert [ticket for ticket, _ in pool.grants()] == ["c"]


def test_the_reserve_is_only_for_those_who_never_wait() -> None:
    pool = SlotPool(4, reserved=2)
    with pytest.raises(ValueError, match="3 slots were asked for, but this pool has 2"):
        pool.enqueue("a", 3)
    pool.enqueue("a", 2)
    [(_, slots)] = pool.grants()
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
    [(_, slots)] = pool.grants()
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


class PoolMachine(RuleBasedStateMachine):
    """Against a model: a queue, and who owns what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(10, reserved=3)
        self.queue: list[tuple[int, int]] = []
        self.owned: list[list[int]] = []
        self.number = 0

    @rule(n=st.integers(0, 7))
    def enqueue(self, n: int) -> None:
        self.number += 1
        self.pool.enqueue(self.number, n)
        self.queue.append((self.number, n))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.queue:
            entry = data.draw(st.sampled_from(self.queue))
            self.queue.remove(entry)
            self.pool.cancel(entry[0])

    @rule()
    def grant(self) -> None:
        free = 7 - sum(len([s for s in slots if s < 7]) for slots in self.owned)
        for ticket, slots in self.pool.grants():
            assert (ticket, len(slots)) == self.queue.pop(0)
            assert all(slot < 7 for slot in slots)
            free -= len(slots)
            self.owned.append(slots)
        assert not self.queue or self.queue[0][1] > free

    @rule()
    def take(self) -> None:
        taken = sum(slot >= 7 for slots in self.owned for slot in slots)
        slot = self.pool.take_reserved()
        assert (slot is None) == (taken == 3)
        if slot is not None:
            self.owned.append([slot])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.owned:
            index = data.draw(st.integers(0, len(self.owned) - 1))
            self.pool.release(self.owned.pop(index))

    @invariant()
    def counts_agree(self) -> None:
        slots = [slot for slots in self.owned for slot in slots]
        assert len(slots) == len(set(slots)) == self.pool.used
        assert self.pool.waiting == len(self.queue)


TestPool = PoolMachine.TestCase
