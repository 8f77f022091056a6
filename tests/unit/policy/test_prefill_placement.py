"""PE scheduling, rule by rule (paper §5), and against the rules as plain functions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.unit.policy.views import fill, request, view

from dualpath.policy.api import EngineView
from dualpath.policy.ordering import Fifo
from dualpath.policy.prefill_placement import CategoryPlacement
from dualpath.policy.rules import LONG_QUEUE, OVERLOADED, SHORT_QUEUE, category, pick_prefill

ALPHA, BETA = 1000, 500


def pe(name: str, tok: int = 0, seq: int = 0, **fields: int | bool) -> EngineView:
    return view(name, tok, seq, alpha=ALPHA, beta=BETA, **fields)


def place(engines: list[EngineView], *tokens: int) -> list[tuple[str, str]]:
    """(engine, rule) of requests of so many tokens."""
    policy = fill(CategoryPlacement(Fifo()), engines)
    for number, n in enumerate(tokens):
        policy.add(request(f"r{number}", n))
    placements = policy.place()
    assert [p.request_id for p in placements] == [f"r{n}" for n in range(len(placements))]
    return [(p.engine.node_id, p.rule) for p in placements]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (pe("a", BETA, read_q=ALPHA), SHORT_QUEUE),
        (pe("a", BETA, read_q=ALPHA + 1), LONG_QUEUE),
        (pe("a", BETA + 1), OVERLOADED),
        (pe("a", BETA + 1, read_q=ALPHA + 1), OVERLOADED),
        (pe("a", 9 * BETA, compute_tok=BETA), SHORT_QUEUE),
        (pe("a", 9 * BETA, seq=1, always=2), SHORT_QUEUE),
        (pe("a", 9 * BETA, seq=2, always=2), OVERLOADED),
        (pe("a", open=False), OVERLOADED),
    ],
)
def test_categories(engine: EngineView, expected: int) -> None:
    assert category(engine) == expected


def test_a_short_read_queue_comes_before_fewer_tokens() -> None:
    assert place([pe("a", 0, read_q=ALPHA + 1), pe("b", 400)], 10) == [
        ("b", "category 2, least tok")
    ]


def test_of_one_category_the_least_tokens_win() -> None:
    assert place([pe("a", 300), pe("b", 200), pe("c", 250)], 10) == [("b", "category 2, least tok")]
    queue = ALPHA + 1
    assert place([pe("a", 300, read_q=queue), pe("b", 200, read_q=queue)], 10) == [
        ("b", "category 3, least tok")
    ]


def test_tokens_count_within_a_drain_which_ends_when_both_categories_are_empty() -> None:
    engines = [pe("a", 0), pe("b", 250), pe("c", 0, read_q=ALPHA + 1)]
    # a: 300, b: 550 (over β), a: 600 (over β), c: 300, c: 600 (over β).
    assert place(engines, *[300] * 9) == [
        ("a", "category 2, least tok"),
        ("b", "category 2, least tok"),
        ("a", "category 2, least tok"),
        ("c", "category 3, least tok"),
        ("c", "category 3, least tok"),
    ]


def test_a_long_head_is_not_passed_over() -> None:
    assert [engine for engine, _ in place([pe("a"), pe("b")], 10 * BETA, 1, 1)] == ["a", "b", "b"]


def test_what_computing_is_left_is_counted_apart_from_tokens() -> None:
    policy = fill(CategoryPlacement(Fifo()), [pe("a", 0, compute_tok=0)])
    for number in range(9):
        policy.add(request(f"r{number}", 10 * BETA, new_tokens=200))
    assert len(policy.place()) == 3
    assert [(v.tok, v.compute_tok) for v in policy.views("a")] == [(30 * BETA, 600)]


def test_a_fetch_corrects_what_was_counted() -> None:
    policy = fill(CategoryPlacement(Fifo()), [pe("a")])
    for number in range(4):
        policy.add(request(f"r{number}", BETA + 1))
    assert len(policy.place()) == 1
    fill(policy, [pe("a", BETA + 1)])
    assert policy.place() == []
    fill(policy, [pe("a", BETA)])
    assert len(policy.place()) == 1


def test_engines_of_a_node_come_and_go_with_its_fetches() -> None:
    policy = fill(CategoryPlacement(Fifo()), [pe("a.0", 10), pe("a.1", 0)])
    fill(policy, [pe("a.0", 10)])
    policy.add(request("r"))
    assert [p.engine.number for p in policy.place()] == [0]


@given(
    engines=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 2000), st.integers(0, 3), st.booleans()),
        max_size=6,
    ),
    tokens=st.lists(st.integers(1, 400), max_size=30),
)
def test_no_overloaded_engine_gets_work_and_nothing_waits_beside_a_free_one(
    engines: list[tuple[int, int, int, bool]], tokens: list[int]
) -> None:
    views = [
        pe(f"n{i}", tok, seq, read_q=read_q, open=is_open)
        for i, (tok, read_q, seq, is_open) in enumerate(engines)
    ]
    policy = fill(CategoryPlacement(Fifo()), views)
    queue = [request(f"r{n}", size) for n, size in enumerate(tokens)]
    for waiting in queue:
        policy.add(waiting)
    for head in queue:
        before = [v for i in range(len(engines)) for v in policy.views(f"n{i}")]
        placement = policy.place_one()
        best = pick_prefill(before)
        assert (placement and placement.engine) == (best and best.engine)
        if placement is None:
            assert all(category(v) == OVERLOADED for v in before)
            break
        assert best is not None
        assert placement.request_id == head.request_id
        assert category(best) != OVERLOADED
        if any(category(v) == SHORT_QUEUE for v in before):
            assert category(best) == SHORT_QUEUE
            assert placement.rule.startswith("category 2")


class AgainstTheRule(RuleBasedStateMachine):
    """However engines change, join and leave and requests come and go: each choice is the plain rule's."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = CategoryPlacement(Fifo())
        self.nodes: set[str] = set()
        self.queue: list[str] = []
        self.number = 0

    @rule(
        node=st.sampled_from("abc"),
        engines=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 2000)), max_size=3),
    )
    def fetch(self, node: str, engines: list[tuple[int, int]]) -> None:
        views = [pe(f"{node}.{i}", tok, read_q=q) for i, (tok, q) in enumerate(engines)]
        self.policy.update(node, views)
        self.nodes.add(node)

    @rule(node=st.sampled_from("abc"))
    def leave(self, node: str) -> None:
        self.policy.remove(node)
        self.nodes.discard(node)

    @rule(tokens=st.lists(st.integers(1, 400), min_size=1, max_size=20))
    def arrive(self, tokens: list[int]) -> None:
        for n in tokens:
            self.number += 1
            self.policy.add(request(f"r{self.number}", n))
            self.queue.append(f"r{self.number}")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.queue:
            name = data.draw(st.sampled_from(self.queue))
            self.queue.remove(name)
            self.policy.discard(name)

    @rule()
    def place(self) -> None:
        assert self.policy.waiting() == self.queue
        while True:
            views = [v for node in sorted(self.nodes) for v in self.policy.views(node)]
            expected = pick_prefill(views) if self.queue else None
            placement = self.policy.place_one()
            assert (placement and placement.engine) == (expected and expected.engine)
            if placement is None:
                return
            assert placement.request_id == self.queue.pop(0)


AgainstTheRule.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAgainstTheRule = AgainstTheRule.TestCase
