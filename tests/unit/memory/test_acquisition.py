"""Whatever arrives, leaves and comes next: nobody waits for ever, and nothing stays taken."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.acquisition import Cluster, Demand, Event, Shape

MAX_CONTEXT = 40


def shapes() -> st.SearchStrategy[Shape]:
    """Clusters whose every pool holds one request of MAX_CONTEXT tokens, and not much more."""

    def build(block: int) -> st.SearchStrategy[Shape]:
        prompt_blocks = -(-(MAX_CONTEXT - 1) // block)
        pe = st.tuples(
            st.integers((MAX_CONTEXT - 2) // block, 3 * prompt_blocks),
            st.integers(MAX_CONTEXT, 3 * MAX_CONTEXT),
        )
        de = st.integers(0, 3).flatmap(
            lambda reserved: st.tuples(
                st.integers(prompt_blocks + reserved, 3 * prompt_blocks + reserved),
                st.just(reserved),
                st.integers(MAX_CONTEXT, 3 * MAX_CONTEXT),
            )
        )
        return st.builds(
            Shape,
            prefill=st.lists(pe, min_size=1, max_size=3).map(tuple),
            decode=st.lists(de, min_size=1, max_size=3).map(tuple),
            block_tokens=st.just(block),
            chunk_tokens=st.integers(1, MAX_CONTEXT),
            layerwise=st.booleans(),
            hot=st.booleans(),
        )

    return st.integers(1, 8).flatmap(build)


def demand(chance: random.Random, block_tokens: int) -> Demand:
    prompt = chance.randint(1, MAX_CONTEXT - 1)
    hits = chance.randint(0, (prompt - 1) // block_tokens)
    return Demand(prompt, hits, chance.randint(0, hits), chance.randint(1, MAX_CONTEXT - prompt))


def check_pools(cluster: Cluster) -> None:
    for pe in cluster.prefill:
        assert 0 <= pe.slots.used <= pe.slots.total
        assert 0 <= pe.hbm.used <= pe.hbm.total
    for de in cluster.decode:
        assert 0 <= de.hbm.allocated_tokens <= de.hbm.capacity_tokens
        assert de.hbm.promised_tokens >= 0


def check_empty(cluster: Cluster) -> None:
    for pe in cluster.prefill:
        assert (pe.slots.used, pe.slots.waiting, pe.hbm.used) == (0, 0, 0)
        assert not pe.ready
        assert not pe.batch
    for de in cluster.decode:
        assert (de.slots.used, de.slots.reserved_used, de.slots.waiting) == (0, 0, 0)
        assert (de.hbm.allocated_tokens, de.hbm.promised_tokens) == (0, 0)
        assert not de.resident
        assert not de.handoff


@settings(max_examples=150, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**32), requests=st.integers(1, 25))
def test_every_request_ends_and_all_memory_comes_back(
    shape: Shape, seed: int, requests: int
) -> None:
    chance = random.Random(seed)
    cluster = Cluster(shape)
    left, events = requests, 0
    # Some runs favour a kind of event, so that whole phases race ahead of others.
    favourite = chance.choice(["read", "copied", "stored", "forward", "forwarded", "step", None])
    while left or cluster.live:
        if left and (not cluster.live or chance.random() < 0.1):
            cluster.submit(demand(chance, shape.block_tokens))
            left -= 1
        elif chance.random() < 0.02:
            cluster.cancel(chance.choice(cluster.live))
        else:
            possible = cluster.events()
            assert possible, "deadlock: requests remain, and nothing can come next"
            preferred = [event for event in possible if event.kind == favourite]
            oldest = {next(iter(de.hbm.owners), None) for de in cluster.decode}
            already = len(cluster.preempted)
            cluster.happen(
                chance.choice(preferred if preferred and chance.random() < 0.8 else possible)
            )
            assert not oldest & {*cluster.preempted[already:]}, "the oldest has to go on decoding"
            events += 1
            assert events < 20_000 * requests, "requests only push each other out"
        check_pools(cluster)
    assert cluster.finished == requests
    check_empty(cluster)


def run(cluster: Cluster, until: str | None = None) -> Event | None:
    """Always the first of the possible events; stops before one of kind `until`."""
    while possible := cluster.events():
        if possible[0].kind == until:
            return possible[0]
        cluster.happen(possible[0])
    return None


def test_two_that_fit_alone_but_outgrow_hbm_together_both_finish() -> None:
    cluster = Cluster(Shape(((8, 80),), ((16, 0, 40),), block_tokens=4, chunk_tokens=16))
    for _ in range(2):
        cluster.submit(Demand(prompt=16, hits=0, share=0, output=20))
    run(cluster)
    assert cluster.finished == 2
    assert cluster.preempted
    check_empty(cluster)


def test_slots_stay_taken_while_a_cancelled_requests_read_is_under_way() -> None:
    cluster = Cluster(Shape(((8, 80),), ((16, 0, 40),), block_tokens=4, chunk_tokens=16))
    number = cluster.submit(Demand(prompt=16, hits=3, share=2, output=4))
    cluster.cancel(number)
    assert cluster.prefill[0].slots.used == 2
    assert cluster.decode[0].slots.used == 4
    cluster.happen(Event("read", number))
    check_empty(cluster)


@pytest.mark.parametrize("kind", ["read", "forward", "forwarded", "copied", "step"])
def test_cancelling_before_any_event_leaves_nothing(kind: str) -> None:
    cluster = Cluster(Shape(((8, 80),), ((16, 1, 40),), block_tokens=4, chunk_tokens=5))
    number = cluster.submit(Demand(prompt=17, hits=2, share=1, output=9))
    assert run(cluster, until=kind) is not None
    cluster.cancel(number)
    run(cluster)
    check_empty(cluster)


def test_decoding_never_waits_for_a_write_back_slot() -> None:
    cluster = Cluster(Shape(((8, 80),), ((16, 1, 40),), block_tokens=4, chunk_tokens=64))
    cluster.submit(Demand(prompt=4, hits=0, share=0, output=20))
    while not cluster.decode[0].resident:
        cluster.happen(next(e for e in cluster.events() if e.kind != "stored"))
    while cluster.decode[0].resident:
        cluster.happen(next(e for e in cluster.events() if e.kind == "step"))
    assert cluster.not_stored == 3
    run(cluster)
    check_empty(cluster)
