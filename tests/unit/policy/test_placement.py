from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.policy.api import EngineId, EngineView, PlacementPolicy, QueuedRequest
from dualpath.policy.placement import LeastTokens, RoundRobin


def view(name: str, tok: int = 0, seq: int = 0, hbm_free: int = 10_000) -> EngineView:
    return EngineView(EngineId(name, 0), seq, tok, 0, hbm_free)


def request(name: str, tokens: int = 100, needed: int = 0) -> QueuedRequest:
    return QueuedRequest(name, tokens, tokens, needed)


def placed(
    policy: PlacementPolicy, queue: list[QueuedRequest], engines: list[EngineView]
) -> list[tuple[str, str]]:
    return [(p.request_id, p.engine.node_id) for p in policy.place(queue, engines)]


def test_the_least_loaded_engine_gets_the_head_and_is_counted_at_once() -> None:
    queue = [request("r1", 100), request("r2", 10), request("r3", 10)]
    assert placed(LeastTokens(), queue, [view("a", tok=50), view("b", tok=60)]) == [
        ("r1", "a"),
        ("r2", "b"),
        ("r3", "b"),
    ]


def test_of_equal_tokens_the_engine_with_fewer_requests_gets_it() -> None:
    engines = [view("a", tok=50, seq=3), view("b", tok=50, seq=1)]
    assert placed(LeastTokens(), [request("r")], engines) == [("r", "b")]


@pytest.mark.parametrize("policy", [LeastTokens(), RoundRobin()])
def test_sequential_requests_are_spread_evenly_over_idle_engines(policy: PlacementPolicy) -> None:
    engines = [view("a"), view("b"), view("c")]
    given_to = Counter(placed(policy, [request(str(n))], engines)[0][1] for n in range(447))
    assert given_to == {"a": 149, "b": 149, "c": 149}


@pytest.mark.parametrize("policy", [LeastTokens(), RoundRobin()])
def test_a_head_without_room_blocks_what_is_behind_it(policy: PlacementPolicy) -> None:
    queue = [request("small", needed=5), request("big", needed=50), request("tiny", needed=1)]
    assert placed(policy, queue, [view("a", hbm_free=20)]) == [("small", "a")]


@pytest.mark.parametrize("policy", [LeastTokens(), RoundRobin()])
def test_room_given_in_a_call_is_gone_in_the_same_call(policy: PlacementPolicy) -> None:
    queue = [request(str(n), needed=10) for n in range(5)]
    engines = [view("a", hbm_free=20), view("b", hbm_free=10)]
    assert Counter(engine for _, engine in placed(policy, queue, engines)) == {"a": 2, "b": 1}


def test_without_engines_nothing_is_placed() -> None:
    assert LeastTokens().place([request("r")], []) == []


def test_round_robin_ignores_load() -> None:
    policy, engines = RoundRobin(), [view("a", tok=1_000_000), view("b")]
    assert [e for _, e in placed(policy, [request(str(n)) for n in range(4)], engines)] == [
        *("a", "b", "a", "b")
    ]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=12),
    loads=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 80)), max_size=4),
)
def test_a_fifo_prefix_is_placed_and_only_where_it_fits(
    sizes: list[tuple[int, int]], loads: list[tuple[int, int]]
) -> None:
    queue = [request(str(n), tokens, needed) for n, (tokens, needed) in enumerate(sizes)]
    engines = [view(str(n), tok, 0, free) for n, (tok, free) in enumerate(loads)]
    placements = LeastTokens().place(queue, engines)
    assert [p.request_id for p in placements] == [r.request_id for r in queue[: len(placements)]]
    free = {e.engine: e.hbm_free for e in engines}
    for r, p in zip(queue, placements, strict=False):
        free[p.engine] -= r.needed_tokens
    assert all(left >= 0 for left in free.values())
    if len(placements) < len(queue):
        assert all(left < queue[len(placements)].needed_tokens for left in free.values())
