"""The decision log: what is kept, and that the pure rules decide the same from it."""

from __future__ import annotations

import random

import pytest
from tests.unit.scheduler.simulated import World

from dualpath.blocks import Phase
from dualpath.policy.registry import read_path_policy
from dualpath.scheduler import decisions as log
from dualpath.scheduler.decisions import Decision, DecisionLog, replay, replay_paths


def loaded(path: str, seed: int) -> list[Decision]:
    """What a cluster of 2 × 2 PEs and 2 × 2 DEs decides about 60 requests that come and go."""
    rng = random.Random(seed)
    world = World("adaptive", path, prefill_tokens=600)
    world.gateway()
    for role in ("prefill", "decode"):
        for i in range(2):
            world.start_node(f"{role}-{i}", role, engines=2)
    for i in range(60):
        tokens = rng.randrange(1, 500)
        world.submit(f"r{i}", tokens, hits=rng.randrange(tokens // 16 + 1), prompt=f"{i}")
        for node in world.nodes.values():
            node.read_q = rng.randrange(4) * 100
        world.settle()
        for node in list(world.nodes.values()):
            for attempt, held in list(node.held.items()):
                if node.role == "decode" and not held.slots and rng.random() < 0.7:
                    world.slots_ready(node, attempt)
        world.settle()
        for attempt, record in list(world.core.book.records.items()):
            if record.prefill is not None and record.decode is not None and rng.random() < 0.5:
                de, pe = world.nodes[record.decode.node_id], world.nodes[record.prefill.node_id]
                world.phase(pe, attempt, Phase.PREFILL)
                pe.free(attempt)
                for phase in (Phase.HANDOFF, Phase.DECODE, Phase.DONE):
                    world.phase(de, attempt, phase)
                de.free(attempt)
        world.settle()
    return world.core.pairing.decisions.latest(log.KEPT)


@pytest.mark.parametrize("path", ["adaptive", "split"])
@pytest.mark.parametrize("seed", range(3))
def test_the_rules_decide_the_same_from_what_was_kept(path: str, seed: int) -> None:
    decided = log.decode(log.encode(loaded(path, seed), 1 << 24))
    assert {d.kind for d in decided} == {"decode", "prefill"}
    assert len({d.rule for d in decided}) >= 2
    assert len({d.engine for d in decided}) == 8
    for decision in decided:
        assert replay(decision) == decision.engine
    reads = [d.read.prefill_blocks for d in decided if d.read is not None]
    assert len(reads) > 30
    assert replay_paths(decided, read_path_policy(path, 16)) == reads


def test_a_decision_by_turns_is_not_replayed_from_loads() -> None:
    world = World("round-robin")
    world.gateway()
    world.start_node("prefill-0", "prefill")
    world.start_node("decode-0", "decode")
    world.submit("a")
    (decision,) = world.core.pairing.decisions.of("a")
    with pytest.raises(ValueError, match="no rule that looks at loads"):
        replay(decision)


def test_of_many_engines_only_the_chosen_nodes_are_kept() -> None:
    world = World()
    world.gateway()
    for i in range(3):
        world.start_node(f"decode-{i}", "decode", engines=16)
    world.submit("a")
    (decision,) = world.core.pairing.decisions.of("a")
    assert decision.engine is not None
    assert {view.engine.node_id for view in decision.views} == {decision.engine.node_id}
    assert (len(decision.views), decision.left_out) == (16, 32)
    with pytest.raises(ValueError, match="32 engines were not kept"):
        replay(decision)


def test_a_request_is_found_with_its_choices_and_attempts() -> None:
    world = World()
    world.gateway()
    world.start_node("decode-0", "decode")
    for name in ("ab", "ab-1", "abc"):
        world.submit(name)
    world.submit("ab", number=2)
    found = world.core.pairing.decisions.of("ab")
    assert [d.request.request_id for d in found] == ["ab#1", "ab-1#1", "ab#2"]
    assert [d.request_id for d in world.core.pairing.decisions.of("ab-1")] == ["ab-1"]


def test_an_id_of_the_client_s_finds_all_that_came_with_it() -> None:
    world = World()
    world.gateway()
    world.start_node("decode-0", "decode")
    for name in ("try-1~aa", "try-1~bb", "try-1~bb-1", "try-11~cc"):
        world.submit(name)

    def of(name: str) -> list[str]:
        return [d.request_id for d in world.core.pairing.decisions.of(name)]

    assert of("try-1") == ["try-1~aa", "try-1~bb", "try-1~bb-1"]
    assert of("bb") == ["try-1~bb", "try-1~bb-1"]
    assert of("try-1~aa") == ["try-1~aa"]
    assert of("try") == []


def test_the_log_is_bounded_and_so_are_answers() -> None:
    world = World()
    world.gateway()
    world.start_node("decode-0", "decode")
    world.submit("a")
    (decision,) = world.core.pairing.decisions.of("a")
    kept = DecisionLog()
    for _ in range(log.KEPT + 10):
        kept.add(decision)
    assert len(kept.latest(10 * log.KEPT)) == log.KEPT
    assert kept.latest(0) == []
    answer = log.encode(kept.latest(log.KEPT), 10_000)
    assert len(answer) <= 10_000
    assert 1 < len(log.decode(answer)) < log.KEPT
