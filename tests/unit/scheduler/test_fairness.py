"""Tokens of keys that wait are served in proportion to their weights, whatever each of them sends."""

from __future__ import annotations

import heapq
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dualpath.scheduler.fairness import FairShare

TOKENS = st.integers(1, 1000)
WEIGHT = st.sampled_from([0.5, 1.0, 2.0, 5.0])


@given(st.lists(TOKENS | st.none()))
def test_with_one_key_it_is_fifo(events: list[int | None]) -> None:
    """A number is an arrival, None an engine that takes the head."""
    shares, queue, places = FairShare(), list[float](), list[float]()
    for tokens in events:
        if tokens is not None:
            places.append(shares.place("", 1.0, tokens))
            queue.append(places[-1])
        elif queue:
            shares.served(queue.pop(0))
    assert all(before < after for before, after in pairwise(places))


@given(st.lists(WEIGHT, min_size=2, max_size=4), st.data())
def test_keys_that_always_wait_get_tokens_by_weight(
    weights: list[float], data: st.DataObject
) -> None:
    shares, queue = FairShare(), list[tuple[float, int, int, int]]()
    number = 0
    for key, weight in enumerate(weights):
        for tokens in data.draw(st.lists(TOKENS, min_size=30, max_size=30)):
            heapq.heappush(queue, (shares.place(f"k{key}", weight, tokens), number, key, tokens))
            number += 1
    waiting = dict.fromkeys(range(len(weights)), 30)
    served = dict.fromkeys(range(len(weights)), 0)
    while all(waiting.values()):
        place, _, key, tokens = heapq.heappop(queue)
        shares.served(place)
        served[key] += tokens
        waiting[key] -= 1
    per_weight = [served[key] / weight for key, weight in enumerate(weights)]
    # Fair queueing's bound: two keys are never further apart than one longest request of each.
    assert max(per_weight) - min(per_weight) <= 2 * 1000 / min(weights)


def test_a_key_that_was_away_saves_nothing_up() -> None:
    shares = FairShare()
    for _ in range(50):
        shares.served(shares.place("busy", 1.0, 100))
    back = [shares.place("away", 1.0, 100) for _ in range(3)]
    busy = [shares.place("busy", 1.0, 100) for _ in range(3)]
    assert back[1] >= busy[0]
    assert busy[1] >= back[1]


def test_keys_that_are_gone_are_forgotten() -> None:
    shares = FairShare()
    for number in range(30_000):
        shares.served(shares.place(f"k{number}", 1.0, 1))
    assert len(shares._next) <= 10_000
