"""DE scheduling in two phases, rule by rule (paper §5), and against the rules as plain functions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.unit.policy.views import fill, request, view

from dualpath.policy.api import EngineId, EngineView, QueuedRequest
from dualpath.policy.decode_placement import TwoPhasePlacement
from dualpath.policy.ordering import Fifo
from dualpath.policy.rules import LEAST_TOK, WITHIN_Z, pick_decode, pick_group, threshold


def place(engines: list[EngineView], *queue: QueuedRequest) -> list[str]:
    policy = fill(TwoPhasePlacement(Fifo()), engines)
    for waiting in queue:
        policy.add(waiting)
    return [f"{p.request_id}>{p.engine.node_id}.{p.engine.number}" for p in policy.place()]


# ── phase 1 ────────────────────────────────────────────────────────────────────────────────────────
def test_the_group_with_the_least_tokens_gets_a_request_which_counts_at_once() -> None:
    engines = [view("a.0", 100), view("a.1", 100), view("b.0", 250)]
    # a 200, then 300; b 250, then 260; then a or b, whichever has less.
    queue = [request("r1", 100), request("r2", 10), request("r3", 50), request("r4", 10)]
    assert sorted(place(engines, *queue)) == ["r1>a.0", "r2>b.0", "r3>b.0", "r4>a.1"]


def test_what_waits_in_a_private_queue_counts_too() -> None:
    # No room anywhere: all wait, half with each.
    policy = fill(TwoPhasePlacement(Fifo()), [view("a", hbm_free=0), view("b", hbm_free=0)])
    for n in range(6):
        policy.add(request(f"r{n}", needed=10))
    assert policy.place() == []
    fill(policy, [view("a", hbm_free=1000)])
    # Three of its own in order; then it has nobody, and takes what waits for room at b.
    assert [p.request_id for p in policy.place()] == ["r0", "r2", "r4", "r1", "r3", "r5"]


def test_pick_group_is_the_least_then_the_one_that_waited_longest() -> None:
    assert pick_group([]) is None
    assert pick_group([(5, 1, "a"), (4, 9, "b"), (4, 2, "c")]) == "c"


def test_a_request_goes_only_to_groups_that_could_ever_hold_it() -> None:
    small, large = view("a", 0, hbm_free=50, hbm_total=50), view("b", 9000, hbm_total=10_000)
    assert place([small, large], request("r", needed=60)) == ["r>b.0"]
    policy = fill(TwoPhasePlacement(Fifo()), [small])
    policy.add(request("large", needed=60))
    policy.add(request("little", needed=10))
    # It blocks nobody, and is placed when somebody comes who could hold it.
    assert [p.request_id for p in policy.place()] == ["little"]
    assert policy.waiting() == ["large"]
    fill(policy, [large])
    assert [p.engine.node_id for p in policy.place()] == ["b"]


def test_the_queue_of_a_group_that_leaves_goes_back_to_its_place() -> None:
    policy = fill(TwoPhasePlacement(Fifo()), [view("a", hbm_free=0), view("b", hbm_free=0)])
    for n in range(4):
        policy.add(request(f"r{n}", needed=10))
    assert policy.place() == []
    policy.remove("a")
    policy.update("b", [view("b", hbm_free=0, open=False)])
    assert (len(policy), policy.place()) == (4, [])
    fill(policy, [view("c", hbm_free=30)])
    assert [p.request_id for p in policy.place()] == ["r0", "r1", "r2"]
    assert policy.waiting() == ["r3"]


# ── phase 2 ────────────────────────────────────────────────────────────────────────────────────────
def test_z_is_over_the_head_requests_that_fit_in_total() -> None:
    engines = [view("a.0", 300, hbm_free=100), view("a.1", 100, hbm_free=100)]
    queue = [
        request("r1", 200, 90),
        request("r2", 400, 90),
        request("r3", 999, 30),
        request("r4", 1),
    ]
    # r1 and r2 take 180 of 200; r3 does not fit beside them, and r4 is behind it.
    assert threshold(queue, engines) == pytest.approx(1.05 * (200 + 400 + 300 + 100) / 2)
    assert threshold([], engines) == pytest.approx(1.05 * 200)


def test_z_does_not_change_while_its_requests_are_given_away() -> None:
    policy = fill(TwoPhasePlacement(Fifo()), [view("a.0", 300), view("a.1", 100)])
    for n in range(5):
        policy.add(request(f"r{n}", 100 + n, 10))
    zs = {round(p.threshold, 6) for p in policy.place()}
    assert zs == {round(1.05 * (510 + 400) / 2, 6)}
    fill(policy, policy.views("a"))
    assert policy.views("a")[0].tok + policy.views("a")[1].tok == 910


def test_below_z_the_fewest_requests_win_even_with_more_tokens() -> None:
    engines = [view("a.0", 100, seq=5), view("a.1", 400, seq=1), view("a.2", 900, seq=0)]
    z = threshold([request("r", 50)], engines)
    chosen = pick_decode(request("r", 50), engines, z)
    assert chosen is not None
    # a.2 is above Z = 507.5, of the others a.1 has fewer requests.
    assert chosen.engine == EngineId("a", 1)
    assert place(engines, request("r", 50)) == ["r>a.1"]


def test_above_z_the_least_tokens_win() -> None:
    # The longest prompt fills any engine beyond Z.
    engines = [view("a.0", 10, seq=5), view("a.1", 20, seq=0), view("a.2", 30, seq=0)]
    policy = fill(TwoPhasePlacement(Fifo()), engines)
    policy.add(request("r", 1000))
    (placement,) = policy.place()
    assert (placement.engine.number, placement.rule) == (0, LEAST_TOK)
    policy.add(request("s", 1))
    (placement,) = policy.place()
    assert (placement.engine.number, placement.rule) == (1, WITHIN_Z)


def test_engines_without_room_are_passed_over_and_none_with_room_stops() -> None:
    engines = [view("a.0", 0, hbm_free=10), view("a.1", 500, hbm_free=40)]
    queue = [request("r1", 10, 30), request("r2", 10, 30), request("r3", 10, 5)]
    assert place(engines, *queue) == ["r1>a.1"]


def test_a_blocked_head_goes_to_a_group_that_nobody_waits_for() -> None:
    # Phase 1 chooses a by its tokens, but a has no room and b has.
    engines = [view("a", 0, hbm_free=5), view("b", 9000, hbm_free=50)]
    assert place(engines, request("r1", needed=20), request("r2", needed=20)) == [
        "r1>b.0",
        "r2>b.0",
    ]


def test_a_large_request_is_not_overtaken_for_ever_in_its_group() -> None:
    policy = fill(TwoPhasePlacement(Fifo()), [view("a", hbm_free=50, hbm_total=100)])
    policy.add(request("large", needed=100))
    for n in range(50):
        policy.add(request(f"little{n}", needed=5))
        assert policy.place() == []
    fill(policy, [view("a", hbm_free=100, hbm_total=100)])
    assert [p.request_id for p in policy.place()] == ["large"]


# ── properties ─────────────────────────────────────────────────────────────────────────────────────
ENGINE = st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(0, 100))
SIZE = st.tuples(st.integers(1, 120), st.integers(0, 60))


@given(
    groups=st.lists(st.lists(ENGINE, min_size=1, max_size=3), max_size=3),
    sizes=st.lists(SIZE, max_size=25),
)
def test_a_drain_never_promises_hbm_twice_and_leaves_nothing_beside_room(
    groups: list[list[tuple[int, int, int]]], sizes: list[tuple[int, int]]
) -> None:
    engines = [
        view(f"g{g}.{i}", tok, seq, hbm_free=free)
        for g, members in enumerate(groups)
        for i, (tok, seq, free) in enumerate(members)
    ]
    policy = fill(TwoPhasePlacement(Fifo()), engines)
    queue = {f"r{n}": request(f"r{n}", tok, needed) for n, (tok, needed) in enumerate(sizes)}
    for waiting in queue.values():
        policy.add(waiting)
    free = {engine.engine: engine.hbm_free for engine in engines}
    for placement in policy.place():
        free[placement.engine] -= queue.pop(placement.request_id).needed_tokens
    assert all(left >= 0 for left in free.values())
    assert policy.waiting() == list(queue)
    if queue and engines:
        # At least one group has no room for its head; a group without a queue has none for any head.
        assert min(free.values()) < max(r.needed_tokens for r in queue.values())
        assert all(
            free[v.engine] == v.hbm_free for g in range(len(groups)) for v in policy.views(f"g{g}")
        )


class AgainstTheRule(RuleBasedStateMachine):
    """One group, whatever comes and goes: Z, the choice and the end of a drain are the plain rules'."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = TwoPhasePlacement(Fifo())
        self.queue: list[QueuedRequest] = []
        self.number = 0

    @rule(engines=st.lists(ENGINE, max_size=4))
    def fetch(self, engines: list[tuple[int, int, int]]) -> None:
        views = [view(f"g.{i}", tok, seq, hbm_free=f) for i, (tok, seq, f) in enumerate(engines)]
        self.policy.update("g", views)

    @rule()
    def leave(self) -> None:
        self.policy.remove("g")

    @rule(sizes=st.lists(SIZE, min_size=1, max_size=10))
    def arrive(self, sizes: list[tuple[int, int]]) -> None:
        for tokens, needed in sizes:
            self.number += 1
            self.queue.append(request(f"r{self.number}", tokens, needed))
            self.policy.add(self.queue[-1])

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.queue:
            gone = data.draw(st.sampled_from(self.queue))
            self.queue.remove(gone)
            self.policy.discard(gone.request_id)

    @rule()
    def place(self) -> None:
        assert self.policy.waiting() == [r.request_id for r in self.queue]
        while True:
            views = self.policy.views("g")
            z = threshold(self.queue, views) if views else 0.0
            expected = pick_decode(self.queue[0], views, z) if self.queue else None
            placement = self.policy.place_one()
            assert (placement and placement.engine) == (expected and expected.engine)
            if placement is None:
                return
            assert placement.threshold == pytest.approx(z)
            assert placement.request_id == self.queue.pop(0).request_id


TestAgainstTheRule = AgainstTheRule.TestCase


class Groups(RuleBasedStateMachine):
    """Several groups that come, fill up, drain and leave: no request is lost, doubled, or left beside room that
    nobody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = TwoPhasePlacement(Fifo())
        self.nodes: set[str] = set()
        self.waiting: dict[str, QueuedRequest] = {}
        self.number = 0

    @rule(node=st.sampled_from("abc"), engines=st.lists(ENGINE, max_size=3), is_open=st.booleans())
    def fetch(self, node: str, engines: list[tuple[int, int, int]], is_open: bool) -> None:
        self.nodes.add(node)
        self.policy.update(
            node,
            [
                view(f"{node}.{i}", tok, seq, hbm_free=free, hbm_total=100, open=is_open)
                for i, (tok, seq, free) in enumerate(engines)
            ],
        )

    @rule(node=st.sampled_from("abc"))
    def leave(self, node: str) -> None:
        self.nodes.discard(node)
        self.policy.remove(node)

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 110)), min_size=1, max_size=8)
    )
    def arrive(self, sizes: list[tuple[int, int]]) -> None:
        for tokens, needed in sizes:
            self.number += 1
            self.waiting[f"r{self.number}"] = request(f"r{self.number}", tokens, needed)
            self.policy.add(self.waiting[f"r{self.number}"])

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.waiting:
            name = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[name]
            self.policy.discard(name)

    @rule()
    def place(self) -> None:
        for placement in self.policy.place():
            del self.waiting[placement.request_id]
        assert self.policy.waiting() == list(self.waiting)
        for node in self.nodes:
            views = [v for v in self.policy.views(node) if v.open]
            assert all(v.hbm_free >= 0 for v in views)
            # Who is first waits beside room only where another one is the head, and has none.
            room = max((v.hbm_free for v in views), default=-1)
            needs = [r.needed_tokens for r in self.waiting.values()]
            if needs and needs[0] <= room:
                assert any(need > room for need in needs[1:])


TestGroups = Groups.TestCase
for machine in (AgainstTheRule, Groups):
    machine.TestCase.settings = settings(
        max_examples=15,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
