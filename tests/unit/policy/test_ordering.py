"""Who stands where: FIFO, and short first with ageing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.views import request

from dualpath.policy.ordering import Fifo, ShortFirst
from dualpath.policy.queue import RequestQueue


def order(ordering: Fifo | ShortFirst, *requests: tuple[float, int]) -> list[int]:
    """Places of requests of (arrived_s, new_tokens), given in the order of arrival."""
    queue = RequestQueue(ordering)
    for number, (arrived_s, new_tokens) in enumerate(requests):
        queue.add(request(str(number), new_tokens, arrival=number, arrived_s=arrived_s))
    return [int(waiting.request_id) for waiting in queue]


def test_fifo_knows_no_lengths() -> None:
    assert order(Fifo(), (0, 900), (1, 5), (2, 1)) == [0, 1, 2]


def test_short_requests_overtake_long_ones() -> None:
    assert order(ShortFirst(100, weight=1), (0, 900), (1, 5), (2, 1)) == [1, 2, 0]


def test_nobody_is_overtaken_by_who_comes_later_than_its_work_is_worth() -> None:
    # 900 tokens at 100 a second, four times: 36 s.
    long = (0.0, 900)
    assert order(ShortFirst(100, weight=4), long, (35.9, 1)) == [1, 0]
    assert order(ShortFirst(100, weight=4), long, (36.1, 1)) == [0, 1]


def test_weight_0_is_fifo() -> None:
    assert order(ShortFirst(100, weight=0), (0, 900), (1, 5), (2, 1)) == [0, 1, 2]


@pytest.mark.parametrize("bad", [(0.0, 1.0), (1.0, -1.0)])
def test_an_order_without_a_rate_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="give a rate above 0"):
        ShortFirst(*bad)


@given(
    gaps=st.lists(st.tuples(st.floats(0, 50), st.integers(1, 2000)), max_size=30),
    leave=st.sets(st.integers(0, 29)),
)
def test_a_queue_is_sorted_whoever_leaves_and_overtaking_is_bounded(
    gaps: list[tuple[float, int]], leave: set[int]
) -> None:
    ordering, at = ShortFirst(100, weight=2), 0.0
    queue = RequestQueue(ordering)
    arrivals = []
    for number, (gap, new) in enumerate(gaps):
        at += gap
        arrivals.append(request(str(number), new, arrival=number, arrived_s=at))
        queue.add(arrivals[-1])
    for number in leave:
        queue.discard(str(number))
    left = [r for n, r in enumerate(arrivals) if n not in leave]
    expected = sorted(left, key=ordering.key)
    assert list(queue) == expected
    assert [queue.pop() for _ in range(len(queue))] == expected
    for place, first in enumerate(expected):
        for second in expected[place + 1 :]:
            # `first` overtook: it came within what the other's work is worth.
            assert first.arrived_s <= second.arrived_s + second.new_tokens * 2 / 100 + 1e-9


def test_an_empty_queue_gives_nothing() -> None:
    queue = RequestQueue(Fifo())
    assert (queue.head(), list(queue), queue.discard("x")) == (None, [], False)
    with pytest.raises(IndexError, match="nobody waits"):
        queue.pop()


def test_what_left_does_not_pile_up() -> None:
    queue = RequestQueue(Fifo())
    for number in range(1000):
        queue.add(request(str(number)))
        queue.discard(str(number))
    assert len(queue._heap) < 50
