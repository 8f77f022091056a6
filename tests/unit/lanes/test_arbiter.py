from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.lanes.arbiter import Arbiter, Ticket

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=5)
QUANTUM = 1000


def drain(arbiter: Arbiter[int]) -> list[int]:
    items = []
    while (ticket := arbiter.pop()) is not None:
        items.append(ticket.item)
    return items


def test_two_backlogged_lanes_share_99_to_1() -> None:
    arbiter: Arbiter[int] = Arbiter([99, 1], QUANTUM)
    for number in range(20_000):
        arbiter.push(number, number % 2, QUANTUM)
    sent = Counter(ticket.lane for _ in range(10_000) if (ticket := arbiter.pop()))
    assert sent[1] == pytest.approx(100, abs=1)


def test_shares_are_of_bytes_whatever_the_chunks_sizes() -> None:
    arbiter: Arbiter[int] = Arbiter([3, 1], QUANTUM)
    for _ in range(50_000):
        arbiter.push(0, 0, 37)
    for _ in range(5_000):
        arbiter.push(0, 1, 999)
    sent: Counter[int] = Counter()
    while arbiter.waiting(0) and arbiter.waiting(1):
        ticket = arbiter.pop()
        assert ticket is not None
        sent[ticket.lane] += ticket.nbytes
    assert sent[0] / sent[1] == pytest.approx(3, rel=0.01)


def test_the_low_lane_alone_sends_all_and_owes_little_afterwards() -> None:
    arbiter: Arbiter[int] = Arbiter([99, 1], QUANTUM)
    for number in range(1000):
        arbiter.push(number, 1, QUANTUM)
    assert drain(arbiter) == list(range(1000))
    for number in range(400):
        arbiter.push(number, number % 2, QUANTUM)
    # One chunk of debt, and the share of a second one: no more than two shares of the high lane pass.
    first_low = next(i for i in range(400) if (t := arbiter.pop()) and t.lane == 1)
    assert first_low <= 199


def test_a_lane_that_refills_between_grants_keeps_its_share() -> None:
    """One writer asks for its next chunk once it was granted the last: at each pop both lanes wait."""
    arbiter: Arbiter[int] = Arbiter([99, 1], QUANTUM)
    sent = [0, 0]
    for lane in (0, 1):
        arbiter.push(0, lane, QUANTUM // 4)
    for _ in range(20_000):
        ticket = arbiter.pop()
        assert ticket is not None
        sent[ticket.lane] += ticket.nbytes
        arbiter.push(0, ticket.lane, ticket.nbytes)
    assert sent[1] / sum(sent) == pytest.approx(0.01, rel=0.05)


def test_messages_overtake_bulk_of_their_lane_only() -> None:
    arbiter: Arbiter[str] = Arbiter([1], QUANTUM)
    for name in ("bulk1", "bulk2"):
        arbiter.push(name, 0, QUANTUM, 1)
    for name in ("message1", "message2"):
        arbiter.push(name, 0, 10, 0)
    order = [ticket.item for _ in range(4) if (ticket := arbiter.pop())]
    assert order == ["message1", "message2", "bulk1", "bulk2"]


@given(WEIGHTS, st.data())
def test_all_backlogged_lanes_stay_within_two_chunks_of_their_shares(
    weights: list[int], data: st.DataObject
) -> None:
    arbiter: Arbiter[int] = Arbiter(weights, QUANTUM)
    sizes = [data.draw(st.integers(1, QUANTUM)) for _ in weights]
    for lane in range(len(weights)):
        arbiter.push(0, lane, sizes[lane])
    sent = [0] * len(weights)
    for _ in range(300):
        ticket = arbiter.pop()
        assert ticket is not None
        sent[ticket.lane] += ticket.nbytes
        arbiter.push(0, ticket.lane, sizes[ticket.lane])
        # Bytes per unit of weight advance together, within a round and a chunk of each lane.
        served = [count / weight for count, weight in zip(sent, weights, strict=True)]
        slack = QUANTUM / sum(weights) + max(
            size / weight for size, weight in zip(sizes, weights, strict=True)
        )
        assert max(served) - min(served) <= 2 * slack


Op = st.tuples(st.sampled_from(["push", "pop", "cancel"]), st.integers(0, 10_000))


@given(WEIGHTS, st.lists(Op, max_size=200))
def test_every_chunk_leaves_once_unless_cancelled_and_in_order(
    weights: list[int], ops: list[tuple[str, int]]
) -> None:
    arbiter: Arbiter[int] = Arbiter(weights, QUANTUM)
    queues: dict[tuple[int, int], deque[Ticket[int]]] = {}
    live: list[Ticket[int]] = []
    number = 0
    for verb, value in ops:
        if verb == "push":
            lane, priority = value % len(weights), value % 2
            ticket = arbiter.push(number, lane, value % QUANTUM, priority)
            queues.setdefault((lane, priority), deque()).append(ticket)
            live.append(ticket)
            number += 1
        elif verb == "cancel" and live:
            ticket = live.pop(value % len(live))
            for queue in queues.values():
                if ticket in queue:
                    queue.remove(ticket)
            assert arbiter.cancel(ticket)
            assert not arbiter.cancel(ticket)
        elif verb == "pop":
            popped = arbiter.pop()
            assert (popped is None) == (not live)
            if popped is not None:
                live.remove(popped)
                queue = queues.get((popped.lane, 0)) or queues[popped.lane, 1]
                assert queue.popleft() is popped
                assert not arbiter.cancel(popped)
        assert len(arbiter) == len(live)
    assert len(drain(arbiter)) == len(live)


def test_cancelled_chunks_cost_their_lane_nothing() -> None:
    arbiter: Arbiter[str] = Arbiter([1, 1], QUANTUM)
    tickets = [arbiter.push("cancelled", 0, QUANTUM) for _ in range(100)]
    for ticket in tickets:
        arbiter.cancel(ticket)
    for _ in range(10):
        arbiter.push("left", 0, QUANTUM)
        arbiter.push("right", 1, QUANTUM)
    order = [popped.item for _ in range(20) if (popped := arbiter.pop())]
    assert abs(order[:10].count("left") - 5) <= 1


def test_impossible_arbiters_are_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        Arbiter([], QUANTUM)
    with pytest.raises(ValueError, match="weight"):
        Arbiter([1, 0], QUANTUM)
    with pytest.raises(ValueError, match="quantum"):
        Arbiter([1], 0)
