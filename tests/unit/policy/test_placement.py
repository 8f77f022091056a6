"""The naive twins, and what holds for every placement policy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.views import fill, request, view

from dualpath.policy.api import PlacementPolicy, QueuedRequest
from dualpath.policy.placement import LeastTokens, RoundRobin
from dualpath.policy.registry import PLACEMENTS, Side, placement_policy

SIDES: tuple[Side, Side] = ("prefill", "decode")
EVERY = [(name, side) for name in PLACEMENTS for side in SIDES]


def placed(policy: PlacementPolicy, queue: list[QueuedRequest]) -> list[tuple[str, str]]:
    for waiting in queue:
        policy.add(waiting)
    return [(p.request_id, p.engine.node_id) for p in policy.place()]


def test_the_least_loaded_engine_gets_the_head_and_is_counted_at_once() -> None:
    policy = fill(LeastTokens(), [view("a", tok=50), view("b", tok=60)])
    queue = [request("r1", 100), request("r2", 10), request("r3", 10)]
    assert placed(policy, queue) == [("r1", "a"), ("r2", "b"), ("r3", "b")]


def test_of_equal_tokens_the_engine_with_fewer_requests_gets_it() -> None:
    policy = fill(LeastTokens(), [view("a", tok=50, seq=3), view("b", tok=50, seq=1)])
    assert placed(policy, [request("r")]) == [("r", "b")]


def test_round_robin_ignores_load() -> None:
    policy = fill(RoundRobin(), [view("a", tok=1_000_000), view("b")])
    queue = [request(str(n)) for n in range(4)]
    assert [engine for _, engine in placed(policy, queue)] == ["a", "b", "a", "b"]


def test_random_uses_all_engines_and_is_the_same_every_time() -> None:
    def once() -> list[tuple[str, str]]:
        policy = fill(placement_policy("random", "prefill"), [view(name) for name in "abc"])
        return placed(policy, [request(str(n)) for n in range(60)])

    assert once() == once()
    assert min(Counter(engine for _, engine in once()).values()) > 9
    assert len(set(once())) == 60


@pytest.mark.parametrize(("name", "side"), EVERY)
def test_a_request_goes_once_and_only_if_it_still_waits(name: str, side: Side) -> None:
    policy = fill(placement_policy(name, side), [view("a")])
    for waiting in (request("gone"), request("r1"), request("r2")):
        policy.add(waiting)
    with pytest.raises(ValueError, match="r1 waits already"):
        policy.add(request("r1"))
    policy.discard("gone")
    policy.discard("never there")
    assert (len(policy), policy.waiting()) == (2, ["r1", "r2"])
    assert [p.request_id for p in policy.place()] == ["r1", "r2"]
    assert (len(policy), policy.waiting(), policy.place()) == (0, [], [])
    assert [(v.seq, v.tok) for v in policy.views("a")] == [(2, 200)]


@pytest.mark.parametrize(("name", "side"), EVERY)
def test_without_open_engines_nothing_is_placed(name: str, side: Side) -> None:
    policy = placement_policy(name, side)
    policy.add(request("r"))
    assert policy.place() == []
    fill(policy, [view("a", open=False)])
    assert policy.place() == []
    fill(policy, [view("a"), view("b")])
    policy.remove("a")
    policy.remove("unknown")
    assert [p.engine.node_id for p in policy.place()] == ["b"]
    assert policy.views("a") == []


@pytest.mark.parametrize(("name", "side"), [e for e in EVERY if e[0] != "random"])
def test_sequential_requests_are_spread_evenly_over_idle_engines(name: str, side: Side) -> None:
    policy = placement_policy(name, side)
    given_to: Counter[str] = Counter()
    for number in range(150):
        # Each is done before the next comes: all engines are idle at every choice.
        fill(policy, [view("a"), view("b"), view("c")])
        given_to[placed(policy, [request(str(number))])[0][1]] += 1
    assert given_to == {"a": 50, "b": 50, "c": 50}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_head_without_room_blocks_what_is_behind_it(name: str) -> None:
    policy = fill(placement_policy(name, "decode"), [view("a", hbm_free=20)])
    queue = [request("small", needed=5), request("big", needed=50), request("tiny", needed=1)]
    assert placed(policy, queue) == [("small", "a")]
    assert policy.waiting() == ["big", "tiny"]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_room_given_in_a_drain_is_gone_in_the_same_drain(name: str) -> None:
    engines = [view("a", hbm_free=20), view("b", hbm_free=10)]
    policy = fill(placement_policy(name, "decode"), engines)
    queue = [request(str(n), needed=10) for n in range(5)]
    assert Counter(engine for _, engine in placed(policy, queue)) == {"a": 2, "b": 1}


@pytest.mark.parametrize(("name", "side"), EVERY)
def test_lower_priorities_go_first_and_equals_in_order(name: str, side: Side) -> None:
    policy = fill(placement_policy(name, side), [view("a")])
    queue = [
        request("late", priority=5),
        request("r1"),
        request("r2"),
        request("first", priority=-1),
    ]
    assert [r for r, _ in placed(policy, queue)] == ["first", "r1", "r2", "late"]


@given(
    name=st.sampled_from(["least-tokens", "round-robin", "random"]),
    sizes=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=12),
    loads=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 80)), max_size=4),
)
def test_twins_place_a_fifo_prefix_and_only_where_it_fits(
    name: str, sizes: list[tuple[int, int]], loads: list[tuple[int, int]]
) -> None:
    queue = [request(str(n), tokens, needed) for n, (tokens, needed) in enumerate(sizes)]
    engines = [view(str(n), tok, hbm_free=free) for n, (tok, free) in enumerate(loads)]
    policy = fill(placement_policy(name, "decode"), engines)
    placements = placed(policy, queue)
    assert [r for r, _ in placements] == [r.request_id for r in queue[: len(placements)]]
    free = {e.engine.node_id: e.hbm_free for e in engines}
    for r, (_, engine) in zip(queue, placements, strict=False):
        free[engine] -= r.needed_tokens
    assert all(left >= 0 for left in free.values())
    if len(placements) < len(queue):
        assert all(left < queue[len(placements)].needed_tokens for left in free.values())
