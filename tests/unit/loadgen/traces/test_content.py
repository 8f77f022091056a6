"""Appended tokens: equal where they must be, different where they must be, and the same for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.loadgen.traces import Trace, Trajectory, Turn
from dualpath.loadgen.traces.content import WORDS, prompt_ids, turn_ids, turn_words

VOCAB = (300, 30_000)
GOLDEN_FIRST = [12195, 5833, 1399, 24637]
GOLDEN_SECOND = [1090589582, 354527633, 1070758901, 1528885602]


def blocks(name: str, *ids: int, cut: int = 0, size: int = 512) -> Trajectory:
    return Trajectory(name, (Turn(len(ids) * size - cut, 1, blocks=ids),))


def test_ids_are_those_of_every_machine_and_version() -> None:
    trace = Trace("t", (Trajectory("a", (Turn(4, 1), Turn(4, 1)), seed=5),), seed=9)
    (a,) = trace.trajectories
    assert turn_ids(trace, a, 0, VOCAB).tolist() == GOLDEN_FIRST
    assert turn_ids(trace, a, 1, (0, 1 << 31)).tolist() == GOLDEN_SECOND


@given(st.integers(0, 2**31 - 2), st.integers(1, 2**16), st.integers(1, 300))
def test_ids_are_within_the_vocabulary(low: int, width: int, count: int) -> None:
    high = min(low + width, 1 << 31)
    trace = Trace("t", (Trajectory("a", (Turn(count, 1),)),))
    ids = turn_ids(trace, trace.trajectories[0], 0, (low, high))
    assert len(ids) == count
    assert low <= ids.min() <= ids.max() < high


def test_equal_hash_ids_give_equal_blocks() -> None:
    a, b = blocks("a", 1, 2, 3), blocks("b", 1, 2, 4, cut=100)
    trace = Trace("t", (a, b))
    ids_a, ids_b = (turn_ids(trace, t, 0, VOCAB).tolist() for t in (a, b))
    assert len(ids_b) == 3 * 512 - 100
    assert ids_a[:1024] == ids_b[:1024]
    assert ids_a[1024:1088] != ids_b[1024:1088]
    assert ids_a[:512] != ids_a[512:1024]


def test_reused_trajectories_share_no_first_block_but_append_the_same_later() -> None:
    trace = Trace("t", (Trajectory("a", (Turn(200, 3), Turn(70, 2)), seed=1),))
    first, second, third = trace.agents(3)
    starts = [prompt_ids(trace, t, 0, [], VOCAB)[:64] for t in (first, second, third)]
    assert len({tuple(start) for start in starts}) == 3
    assert second.turns[0].generate_tokens == 1
    assert turn_ids(trace, second, 1, VOCAB).tolist() == turn_ids(trace, first, 0, VOCAB).tolist()


def test_a_prompt_is_all_that_was_appended_and_generated_before() -> None:
    trace = Trace("t", (Trajectory("a", (Turn(3, 2), Turn(2, 1), Turn(1, 1))),))
    (a,) = trace.trajectories
    parts = [turn_ids(trace, a, n, VOCAB).tolist() for n in range(3)]
    answers = [[7, 8], [9]]
    assert prompt_ids(trace, a, 2, answers, VOCAB) == [*parts[0], 7, 8, *parts[1], 9, *parts[2]]
    assert list(a.contexts()) == [3, 7, 9]
    assert a.total_tokens == 10


@given(st.integers(1, 400), st.floats(0.05, 3))
def test_text_has_as_many_words_as_its_tokens_ask_for(tokens: int, words: float) -> None:
    trace = Trace("t", (Trajectory("a", (Turn(tokens, 1),)),))
    text = turn_words(trace, trace.trajectories[0], 0, words).split(" ")
    assert len(text) == max(round(tokens * words), 1)
    assert set(text) <= set(WORDS)
