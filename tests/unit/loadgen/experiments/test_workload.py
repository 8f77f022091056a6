from dualpath.loadgen.experiments.workload import (
    contexts,
    longest,
    scaled_turns,
    stretches,
    totals,
)
from dualpath.loadgen.traces import Trace, make_trace
from dualpath.loadgen.traces.model import Trajectory, Turn


def trace() -> Trace:
    return make_trace("64K", trajectories=20, seed=3, lengths=1 / 16)


def test_a_stretch_has_the_context_of_some_moment_of_its_life() -> None:
    whole = trace()
    cut = stretches(whole, 20, 5, seed=1)
    assert len(cut) == 20
    for life, part in zip(whole.trajectories, cut.trajectories, strict=True):
        assert len(part.turns) == 6
        lengths = [turn.append_tokens + turn.generate_tokens for turn in life.turns]
        moments = [sum(lengths[:k]) for k in range(1, len(lengths))]
        assert part.turns[0].append_tokens in moments


def test_turns_of_stretches_are_those_of_all_lives_on_average() -> None:
    """So that one long answer, of an agent that has few of them, is not all that a short run measures."""
    whole = trace()
    lives = [turn for life in whole.trajectories for turn in life.turns[1:]]
    for part in stretches(whole, 20, 10, seed=1).trajectories:
        for name in ("append_tokens", "generate_tokens"):
            mean = sum(getattr(turn, name) for turn in lives) / len(lives)
            found = [getattr(turn, name) for turn in part.turns[1:]]
            assert abs(sum(found) - 10 * mean) <= 1
            assert max(found) - min(found) <= 1


def test_stretches_follow_from_the_seed() -> None:
    assert stretches(trace(), 8, 4, seed=1) == stretches(trace(), 8, 4, seed=1)
    assert stretches(trace(), 8, 4, seed=1) != stretches(trace(), 8, 4, seed=2)


def test_more_agents_than_trajectories_have_trajectories_too() -> None:
    few = make_trace("32K", trajectories=3, seed=0, lengths=1 / 16)
    assert len(stretches(few, 7, 2, seed=0)) == 7


def test_a_life_shorter_than_the_stretch_is_taken_whole() -> None:
    life = Trajectory("short", (Turn(100, 10), Turn(20, 10), Turn(20, 10)))
    (part,) = stretches(Trace("t", (life,)), 1, 9, seed=0).trajectories
    assert part.turns == (Turn(110, 1), Turn(20, 10), Turn(20, 10))


def test_a_life_of_one_turn_is_taken_whole() -> None:
    life = Trajectory("one", (Turn(100, 10),))
    (part,) = stretches(Trace("t", (life,)), 1, 4, seed=0).trajectories
    assert part.turns == (Turn(100, 10),)


def test_contexts_are_the_first_turns() -> None:
    cut = stretches(trace(), 4, 3, seed=0)
    stored = contexts(cut)
    assert [len(t.turns) for t in stored.trajectories] == [1] * 4
    assert [t.turns[0].append_tokens for t in stored.trajectories] == [
        t.turns[0].append_tokens for t in cut.trajectories
    ]
    assert [t.seed for t in stored.trajectories] == [t.seed for t in cut.trajectories]


def test_scaling_turns_leaves_the_context() -> None:
    one = Trace("t", (Trajectory("a", (Turn(1000, 1), Turn(20, 10))),))
    scaled = scaled_turns(one, append=4, generate=0.5)
    assert scaled.trajectories[0].turns == (Turn(1000, 1), Turn(80, 5))


def test_totals_of_a_stored_context() -> None:
    """Blocks of 8. Turn 1: 100 tokens, all stored, the last is computed: 96 hit. Then 1 generated (no KV of it yet),
    20 appended: 121 tokens, of which 100 have KV: 96 hit."""
    agent = Trajectory("a", (Turn(100, 1), Turn(20, 10)))
    found = totals([agent], 8)
    assert (found.turns, found.hit_tokens, found.miss_tokens) == (2, 96 + 96, 4 + 25)
    assert found.pairs == (4 * 96 + 10) + (25 * 96 + 25 * 26 // 2)
    assert (found.generate_tokens, found.longest_steps) == (11, 9)
    assert found.resident_tokens == 121 * 9
    assert longest([agent]) == 131


def test_totals_of_a_context_that_is_not_stored() -> None:
    agent = Trajectory("a", (Turn(100, 1), Turn(20, 10)))
    assert totals([agent], 8, stored=False).hit_tokens == 96
