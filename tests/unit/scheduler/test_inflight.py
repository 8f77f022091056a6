"""Requests that share a prefix in flight: one computes it, the others wait, and are freed whatever happens to it."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.simulated import BLOCK, SimNode, World

from dualpath.blocks import Phase
from dualpath.scheduler.decisions import Decision
from dualpath.scheduler.inflight import MIN_BLOCKS
from dualpath.scheduler.records import WAIT_PREFIX, AttemptRecord
from dualpath.wire import control
from dualpath.wire.types import Attempt, Sampling

LONG = (MIN_BLOCKS + 4) * BLOCK + 1
BLOCKS = MIN_BLOCKS + 4
NOTHING = Sampling(1, 0)


@pytest.fixture
def world() -> World:
    world = World(share_s=10.0, prefill_tokens=100_000)
    world.gateway()
    world.start_node("prefill-0", "prefill", buffer_slots=10_000)
    node = SimNode("decode-0", "decode", "1", hbm=100_000)
    world.nodes[node.name] = node
    world.tell(node.registration())
    world.tell(node.fetch())
    return world


def record(world: World, name: str, number: int = 1) -> AttemptRecord:
    return world.core.book.records[Attempt(name, number)]


def waiting(world: World) -> set[str]:
    records = world.core.book.records.values()
    return {r.attempt.request_id for r in records if r.waiting_for == WAIT_PREFIX}


def prefilled(world: World, name: str, number: int = 1) -> None:
    """The leader's prompt has KV at its DE."""
    de, attempt = world.nodes["decode-0"], Attempt(name, number)
    world.settle()
    world.slots_ready(de, attempt)
    world.settle()
    assert isinstance(world.phase(world.nodes["prefill-0"], attempt, Phase.PREFILL), control.Ok)
    world.phase(de, attempt, Phase.HANDOFF)


def stored(world: World, name: str, blocks: int) -> None:
    world.tell(control.PromptStored(Attempt(name, 1), "decode-0", blocks))


def test_of_64_samples_one_computes_the_prompt_and_63_hit_it(world: World) -> None:
    for i in range(64):
        world.submit(f"s{i}", LONG, prompt="p")
    assert waiting(world) == {f"s{i}" for i in range(1, 64)}
    prefilled(world, "s0")
    assert len(waiting(world)) == 63
    stored(world, "s0", BLOCKS)
    assert not waiting(world)
    computed = [record(world, f"s{i}").new_tokens for i in range(64)]
    assert computed == [LONG, *[LONG - BLOCKS * BLOCK] * 63]


def test_one_with_fewer_keys_than_blocks_waits_for_those_that_it_has(world: World) -> None:
    world.submit("a", LONG, prompt="p")
    some = record(world, "a").submit.keys
    world.tell(
        control.Submit(
            Attempt("b", 1), "gw", LONG + 5 * BLOCK, 0, b"root", some, 0, NOTHING, 1000.0
        )
    )
    assert waiting(world) == {"b"}
    prefilled(world, "a")
    stored(world, "a", BLOCKS)
    assert record(world, "b").hit_blocks == BLOCKS


def test_one_that_comes_when_the_prefix_was_just_stored_hits_it(world: World) -> None:
    """Its gateway may have asked the shards a moment before."""
    world.submit("a", LONG, prompt="p")
    prefilled(world, "a")
    stored(world, "a", BLOCKS)
    world.submit("late", LONG, prompt="p")
    assert record(world, "late").hit_blocks == BLOCKS
    world.tick(60.0)
    world.gateway()
    world.submit("later", LONG, prompt="p")
    assert "later" not in {r.attempt.request_id for r in world.core.book.records.values()} or (
        record(world, "later").hit_blocks == 0
    )


def test_a_short_prefix_or_another_prompt_waits_for_nobody(world: World) -> None:
    world.submit("a", LONG, prompt="p")
    world.submit("short", MIN_BLOCKS * BLOCK, prompt="p")
    world.submit("other", LONG, prompt="q")
    world.submit("nearly-all-hit", LONG, hits=BLOCKS - MIN_BLOCKS + 1, prompt="p")
    assert not waiting(world)
    world.submit("follows", LONG, hits=BLOCKS - MIN_BLOCKS, prompt="p")
    assert waiting(world) == {"follows"}


def test_a_partly_stored_prefix_counts_as_far_as_it_goes(world: World) -> None:
    world.submit("a", LONG, prompt="p")
    world.submit("b", LONG, prompt="p")
    prefilled(world, "a")
    stored(world, "a", 5)
    assert not waiting(world)
    assert record(world, "b").hit_blocks == 5
    assert record(world, "b").new_tokens == LONG - 5 * BLOCK


@pytest.mark.parametrize("how", ["cancelled", "failed", "node lost", "superseded"])
def test_however_the_leader_ends_the_first_follower_leads_the_others(
    world: World, how: str
) -> None:
    for name in ("a", "b", "c", "d"):
        world.submit(name, LONG, prompt="p")
    world.settle()
    attempt = Attempt("a", 1)
    match how:
        case "cancelled":
            world.tell(control.CancelRequest(attempt, "gone"))
        case "failed":
            world.tell(control.AttemptLost(attempt, "decode-0", "transfer", "broken", True))
        case "node lost":
            fresh = SimNode("decode-0", "decode", "2", hbm=100_000)
            world.nodes["decode-0"] = fresh
            world.tell(fresh.registration())
            world.tell(fresh.fetch())
        case "superseded":
            world.submit("a", LONG, number=2, prompt="p")
    assert "b" not in waiting(world)
    assert waiting(world) >= {"c", "d"}
    world.tell(control.CancelRequest(Attempt("b", 1), "gone"))
    assert "c" not in waiting(world)


def test_a_follower_that_is_cancelled_is_gone(world: World) -> None:
    world.submit("a", LONG, prompt="p")
    world.submit("b", LONG, prompt="p")
    world.tell(control.CancelRequest(Attempt("b", 1), "gone"))
    assert not waiting(world)
    assert not len(world.core.pairing.in_flight)
    prefilled(world, "a")
    stored(world, "a", BLOCKS)


def test_nobody_waits_longer_than_the_bound_even_behind_several_leaders(world: World) -> None:
    for name in ("a", "b", "c"):
        world.submit(name, LONG, prompt="p")
    alive = list(world.nodes.values())

    def passes(seconds: float) -> None:
        for _ in world.steps(seconds):
            world.gateway()
            for node in alive:
                world.tell(node.fetch())
            world.tick()

    passes(6.0)
    world.tell(control.CancelRequest(Attempt("a", 1), "gone"))
    assert waiting(world) == {"c"}
    passes(3.0)
    assert waiting(world) == {"c"}
    passes(2.0)
    assert not waiting(world)
    assert record(world, "c").waits_s["prefix"] == pytest.approx(10.0, abs=1.5)


def test_a_request_of_more_urgent_priority_does_not_wait_for_a_less_urgent_one(
    world: World,
) -> None:
    world.submit("slow", LONG, priority=5, prompt="p")
    world.submit("urgent", LONG, priority=0, prompt="p")
    assert not waiting(world)


def test_the_log_says_for_whom_it_waits(world: World) -> None:
    world.submit("a", LONG, prompt="p")
    world.submit("b", LONG, prompt="p")
    decisions: list[Decision] = world.core.pairing.decisions.of("b")
    assert [(d.kind, d.leader, d.blocks) for d in decisions] == [("prefix", "a#1", BLOCKS)]


def test_with_no_time_to_wait_everybody_computes(world: World) -> None:
    alone = World()
    alone.gateway()
    alone.submit("a", LONG, prompt="p")
    alone.submit("b", LONG, prompt="p")
    assert not waiting(alone)
