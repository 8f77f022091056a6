"""What every arbiter keeps, and weighted round robin."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.lanes.arbiter import Arbiter, Ticket, WeightedRoundRobin
from dualpath.lanes.vl_tables import VlTables

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=5)
QUANTUM = 1000

MAKES: list[Callable[[int], Arbiter[int]]] = [
    lambda lanes: WeightedRoundRobin([99, *[1] * (lanes - 1)], QUANTUM),
    lambda lanes: VlTables(
        range(lanes), [(0, 192)], [(vl, 64) for vl in range(lanes)], high_limit=1
    ),
]
ARBITERS = pytest.mark.parametrize("make", MAKES, ids=["weighted", "vl-tables"])
LANES = 3


def drain(arbiter: Arbiter[int]) -> list[int]:
    items = []
    while (ticket := arbiter.pop()) is not None:
        items.append(ticket.item)
    return items


def take(arbiter: Arbiter[int]) -> Ticket[int]:
    ticket = arbiter.pop()
    assert ticket is not None
    return ticket


# ── every arbiter ──────────────────────────────────────────────────────────────────────────────────
Op = st.tuples(st.sampled_from(["push", "pop", "cancel", "peek", "unsent"]), st.integers(0, 10_000))


@ARBITERS
@given(ops=st.lists(Op, max_size=200))
def test_every_chunk_leaves_once_unless_cancelled_and_in_order(
    make: Callable[[int], Arbiter[int]], ops: list[tuple[str, int]]
) -> None:
    arbiter = make(LANES)
    queues = {(lane, p): deque[Ticket[int]]() for lane in range(LANES) for p in range(2)}
    live: list[Ticket[int]] = []
    for number, (verb, value) in enumerate(ops):
        if verb == "push":
            lane, priority = value % LANES, value % 2
            ticket = arbiter.push(number, lane, value % QUANTUM, priority)
            queues[lane, priority].append(ticket)
            live.append(ticket)
        elif verb == "cancel" and live:
            ticket = live.pop(value % len(live))
            queues[ticket.lane, ticket.priority].remove(ticket)
            assert arbiter.cancel(ticket)
            assert not arbiter.cancel(ticket)
        elif verb == "peek":
            seen = arbiter.peek()
            assert (seen is None) == (not live)
            assert arbiter.peek() is seen
        elif verb in ("pop", "unsent"):
            seen = arbiter.peek()
            popped = arbiter.pop()
            assert popped is seen
            assert (popped is None) == (not live)
            if popped is not None:
                live.remove(popped)
                queue = queues[popped.lane, 0] or queues[popped.lane, 1]
                assert queue.popleft() is popped
                assert not arbiter.cancel(popped)
                if verb == "unsent":
                    arbiter.give_back(popped.lane, popped.nbytes)
        assert len(arbiter) == len(live)
        for lane in range(LANES):
            waits = [ticket.nbytes for ticket in live if ticket.lane == lane]
            assert (arbiter.waiting(lane), arbiter.waiting_bytes(lane)) == (len(waits), sum(waits))
        assert arbiter.contended == (len({ticket.lane for ticket in live}) > 1)
    assert len(drain(arbiter)) == len(live)


@ARBITERS
def test_a_lane_alone_sends_all_without_a_pause(make: Callable[[int], Arbiter[int]]) -> None:
    for lane in range(LANES):
        arbiter = make(LANES)
        for number in range(500):
            arbiter.push(number, lane, QUANTUM)
        assert drain(arbiter) == list(range(500))


@ARBITERS
@given(sizes=st.lists(st.integers(100, QUANTUM), min_size=LANES, max_size=LANES))
def test_no_lane_starves(make: Callable[[int], Arbiter[int]], sizes: list[int]) -> None:
    arbiter = make(LANES)
    for lane, size in enumerate(sizes):
        arbiter.push(0, lane, size)
    missing = set(range(LANES))
    sent = 0
    while missing:
        ticket = take(arbiter)
        sent += ticket.nbytes
        missing.discard(ticket.lane)
        arbiter.push(0, ticket.lane, ticket.nbytes)
        assert sent < 1000 * QUANTUM


@ARBITERS
def test_messages_overtake_bulk_of_their_lane_only(
    make: Callable[[int], Arbiter[int]],
) -> None:
    arbiter = make(1)
    for name in (1, 2):
        arbiter.push(name, 0, QUANTUM, 1)
    for name in (3, 4):
        arbiter.push(name, 0, 10, 0)
    assert drain(arbiter) == [3, 4, 1, 2]


# ── weighted round robin ───────────────────────────────────────────────────────────────────────────
Sizes = st.lists(st.integers(1, QUANTUM), max_size=5).map(lambda sizes: [*sizes, QUANTUM])


@settings(max_examples=40)
@given(Sizes, Sizes, st.integers(0, 500), st.integers(1, 99))
def test_two_backlogged_lanes_have_their_shares_within_02_percent(
    high_sizes: list[int], low_sizes: list[int], skipped: int, weight: int
) -> None:
    """In any time in which both wait throughout, for any mix of sizes, whatever went before."""
    arbiter: Arbiter[int] = WeightedRoundRobin([weight, 100 - weight], QUANTUM)
    sizes = (high_sizes, low_sizes)
    turns = [0, 0]

    def push(lane: int) -> None:
        arbiter.push(0, lane, sizes[lane][turns[lane] % len(sizes[lane])])
        turns[lane] += 1

    # Before it, the low lane was alone.
    for _ in range(skipped):
        push(1)
        take(arbiter)
    for lane in (0, 1):
        push(lane)
    sent = [0, 0]
    while sum(sent) < 1000 * QUANTUM:
        ticket = take(arbiter)
        sent[ticket.lane] += ticket.nbytes
        push(ticket.lane)
    assert sent[0] / sum(sent) == pytest.approx(weight / 100, abs=0.002)


def test_a_mix_of_tiny_and_whole_chunks_is_shared_99_to_1() -> None:
    arbiter: Arbiter[int] = WeightedRoundRobin([9900, 100], QUANTUM)
    pattern = ([1, QUANTUM, 7, 333], [QUANTUM, 2])
    sent, turns = [0, 0], [0, 0]
    for lane in (0, 1):
        arbiter.push(0, lane, pattern[lane][0])
    while sum(sent) < 5000 * QUANTUM:
        ticket = take(arbiter)
        lane = ticket.lane
        sent[lane] += ticket.nbytes
        turns[lane] += 1
        arbiter.push(0, lane, pattern[lane][turns[lane] % len(pattern[lane])])
    assert sent[0] / sum(sent) == pytest.approx(0.99, abs=0.0005)


@given(WEIGHTS, st.data())
def test_all_backlogged_lanes_stay_within_two_chunks_of_their_shares(
    weights: list[int], data: st.DataObject
) -> None:
    arbiter: Arbiter[int] = WeightedRoundRobin(weights, QUANTUM)
    sizes = [data.draw(st.integers(1, QUANTUM)) for _ in weights]
    for lane in range(len(weights)):
        arbiter.push(0, lane, sizes[lane])
    sent = [0] * len(weights)
    for _ in range(300):
        ticket = take(arbiter)
        sent[ticket.lane] += ticket.nbytes
        arbiter.push(0, ticket.lane, sizes[ticket.lane])
        # Bytes per unit of weight advance together, within a round and a chunk of each lane.
        served = [count / weight for count, weight in zip(sent, weights, strict=True)]
        slack = QUANTUM / sum(weights) + max(
            size / weight for size, weight in zip(sizes, weights, strict=True)
        )
        assert max(served) - min(served) <= 2 * slack


def test_a_chunk_of_the_high_lane_goes_before_what_the_low_one_has_waiting() -> None:
    arbiter: Arbiter[int] = WeightedRoundRobin([99, 1], QUANTUM)
    for number in range(250):
        arbiter.push(number, 1, QUANTUM)
    for _ in range(200):
        take(arbiter)
    arbiter.push(-1, 0, QUANTUM)
    assert take(arbiter).item == -1


def test_what_was_next_before_the_high_lane_came_gains_it_no_credit() -> None:
    """The low lane, alone, has just sent; its next chunk was looked at while it waited for the port."""
    arbiter: Arbiter[int] = WeightedRoundRobin([99, 1], QUANTUM)
    for number in range(3):
        arbiter.push(number, 1, QUANTUM)
    take(arbiter)
    take(arbiter)
    seen = arbiter.peek()
    assert seen is not None
    assert seen.lane == 1
    for number in range(100):
        arbiter.push(number, 0, QUANTUM)
    assert [take(arbiter).lane for _ in range(90)] == [0] * 90


def test_a_lane_that_comes_and_goes_does_not_starve_the_other() -> None:
    """Its queue is empty after each of its chunks, which are smaller than a round's credit."""
    arbiter: Arbiter[int] = WeightedRoundRobin([99, 1], QUANTUM)
    arbiter.push(0, 1, QUANTUM)
    sent: Counter[int] = Counter()
    for _ in range(20_000):
        arbiter.push(0, 0, QUANTUM // 10)
        while arbiter.waiting(0):
            ticket = take(arbiter)
            sent[ticket.lane] += ticket.nbytes
            if ticket.lane == 1:
                arbiter.push(0, 1, QUANTUM)
    assert sent[1] / sent.total() == pytest.approx(0.01, abs=0.002)


def test_the_low_lane_alone_sends_all_and_owes_little_afterwards() -> None:
    arbiter: Arbiter[int] = WeightedRoundRobin([99, 1], QUANTUM)
    for number in range(1000):
        arbiter.push(number, 1, QUANTUM)
    assert drain(arbiter) == list(range(1000))
    for number in range(400):
        arbiter.push(number, number % 2, QUANTUM)
    # One chunk of debt, and the share of a second one: no more than two shares of the high lane pass.
    assert next(count for count in range(400) if take(arbiter).lane == 1) <= 199


def test_cancelled_and_unsent_chunks_cost_their_lane_nothing() -> None:
    arbiter: Arbiter[int] = WeightedRoundRobin([1, 1], QUANTUM)
    for ticket in [arbiter.push(0, 0, QUANTUM) for _ in range(100)]:
        arbiter.cancel(ticket)
    for _ in range(100):
        arbiter.push(0, 0, QUANTUM)
        assert take(arbiter).lane == 0
        arbiter.give_back(0, QUANTUM)
    for _ in range(10):
        arbiter.push(1, 0, QUANTUM)
        arbiter.push(2, 1, QUANTUM)
    assert abs(drain(arbiter)[:10].count(1) - 5) <= 1


def test_impossible_arbiters_are_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        WeightedRoundRobin([], QUANTUM)
    with pytest.raises(ValueError, match="weight"):
        WeightedRoundRobin([1, 0], QUANTUM)
    with pytest.raises(ValueError, match="quantum"):
        WeightedRoundRobin([1], 0)
