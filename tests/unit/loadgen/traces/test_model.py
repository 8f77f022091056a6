"""Traces are scaled, shortened and reused without losing what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.loadgen.traces import Trace, Trajectory, Turn
from dualpath.loadgen.traces.content import turn_ids

TRACE = Trace(
    "t",
    (
        Trajectory("a", (Turn(100, 10), Turn(50, 20, 4.0), Turn(0, 5)), arrival_s=2.0),
        Trajectory("b", (Turn(1000, 1),), arrival_s=6.0),
    ),
)


def test_lengths_and_times_scale_and_nothing_becomes_empty() -> None:
    scaled = TRACE.scaled(append=0.1, generate=0.1, time=0.5)
    a, b = scaled.trajectories
    assert a.turns == (Turn(10, 1), Turn(5, 2, 2.0), Turn(0, 1))
    assert (a.arrival_s, b.arrival_s, b.turns) == (1.0, 3.0, (Turn(100, 1),))


def test_a_limit_drops_the_turns_and_trajectories_that_do_not_fit() -> None:
    limited = TRACE.scaled(max_tokens=184)
    assert [(t.name, len(t.turns)) for t in limited.trajectories] == [("a", 2)]
    with pytest.raises(ValueError, match="fits a context of 50 tokens"):
        TRACE.scaled(max_tokens=50)


def test_a_share_of_the_turns_keeps_the_first() -> None:
    assert [len(t.turns) for t in TRACE.scaled(turns=0.34).trajectories] == [2, 1]


@pytest.mark.parametrize("wrong", [{"append": 0.0}, {"turns": 1.5}, {"time": -1.0}])
def test_scales_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="scales"):
        TRACE.scaled(**wrong)  # type: ignore[arg-type]


def test_text_cannot_be_scaled() -> None:
    turn = Turn(10, 1, messages=({"role": "user", "content": "hello"},))
    with pytest.raises(ValueError, match="text"):
        Trace("t", (Trajectory("a", (turn,)),)).scaled(append=2)


@given(st.integers(1, 5 * 512), st.floats(0.01, 4))
def test_scaled_blocks_are_as_many_as_before_and_still_equal(length: int, scale: float) -> None:
    count = -(-length // 512)
    a = Trajectory("a", (Turn(length, 1, blocks=tuple(range(count))),))
    b = Trajectory("b", (Turn(512 * count, 1, blocks=tuple(range(count))),))
    scaled = Trace("t", (a, b)).scaled(append=scale)
    size = scaled.block_tokens
    ids = [turn_ids(scaled, t, 0, (0, 1000)).tolist() for t in scaled.trajectories]
    assert -(-len(ids[0]) // size) == count
    assert ids[1][: len(ids[0])] == ids[0]


def test_agents_beyond_the_trajectories_reuse_them_after_a_first_round() -> None:
    agents = TRACE.agents(5)
    assert [t.name for t in agents] == ["a", "b", "a+2", "b+3", "a+4"]
    assert agents[2].turns[1:] == agents[0].turns
    assert agents[2].turns[0].generate_tokens == 1


def test_samples_of_a_prompt_are_equal_trajectories() -> None:
    repeated = TRACE.repeated(3)
    assert [t.name for t in repeated.trajectories] == ["a", "a#1", "a#2", "b", "b#1", "b#2"]
    ids = [turn_ids(repeated, t, 0, (0, 99)).tolist() for t in repeated.trajectories[:3]]
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize("arguments", [(-1, 1), (1, 0), (1, 1, -1.0), (1, 1, float("inf"))])
def test_turns_that_cannot_be_are_refused(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError):
        Turn(*arguments)
