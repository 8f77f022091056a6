"""The arithmetic between what benchmarks observe and what they print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from benchmarks.decode_rate import common_rate, make_prompts
from benchmarks.local import Streamed
from benchmarks.startup import Memory
from benchmarks.ttft import cached_tokens
from hypothesis import given
from hypothesis import strategies as st

EXPLAIN: dict[str, Any] = {"read_path": "split", "hit_tokens": 128, "attempts": 1}


def streamed(sent: float, content_s: Sequence[float], tokens: int) -> Streamed:
    return Streamed(sent, tuple(content_s), tokens, EXPLAIN)


def test_one_stream_of_a_token_a_chunk_has_the_rate_of_its_chunks() -> None:
    assert common_rate([streamed(50.0, [1.0, 1.5, 2.0, 2.5], 4)]) == pytest.approx(2.0)


def test_a_chunk_of_several_tokens_counts_for_all_of_them() -> None:
    assert common_rate([streamed(0.0, [1.0, 2.0, 3.0], 6)]) == pytest.approx(4.0 / 2.0)


def test_only_the_time_in_which_all_streams_flow_counts() -> None:
    early = streamed(0.0, [1, 2, 3, 4, 5], 5)
    late = streamed(2.0, [1, 2, 3, 4, 5], 5)  # On the clock: 3 to 7.
    assert common_rate([early, late]) == pytest.approx((2 + 2) / 2)


def test_streams_that_never_flow_together_have_no_common_rate() -> None:
    with pytest.raises(RuntimeError, match="--steps"):
        common_rate([streamed(0.0, [1, 2], 2), streamed(5.0, [1, 2], 2)])


@given(st.integers(2, 8), st.floats(0.01, 1.0), st.integers(3, 40))
def test_streams_in_step_have_the_sum_of_their_rates(batch: int, step_s: float, n: int) -> None:
    answers = [streamed(7.0, [1.0 + step_s * i for i in range(n)], n) for _ in range(batch)]
    assert common_rate(answers) == pytest.approx(batch / step_s, rel=1e-6)


def test_prompts_of_a_batch_are_spread_about_the_context() -> None:
    lengths = [len(prompt) for prompt in make_prompts(range(100), 8, 300)]
    assert lengths[0] == 225
    assert lengths[-1] == 375
    assert lengths == sorted(lengths)
    assert [len(prompt) for prompt in make_prompts(range(100), 1, 300)] == [300]


def test_cached_tokens_are_whole_blocks_near_the_share() -> None:
    assert cached_tokens(2000, 0.97) == 1920


@given(st.integers(1, 10_000), st.floats(0.0, 1.0))
def test_at_least_one_token_is_left_to_compute(prompt: int, share: float) -> None:
    cached = cached_tokens(prompt, share)
    assert 0 <= cached < prompt
    assert cached % 64 == 0


def test_memory_is_read_from_a_rollup() -> None:
    rollup = "55-7f ---p 0 00:00 0 [rollup]\nRss:  1024 kB\nPss:   512 kB\nPss_Anon:  1 kB\n"
    assert Memory.of(rollup) == Memory(rss=1 << 20, pss=1 << 19)


def test_a_text_without_figures_is_no_rollup() -> None:
    with pytest.raises(ValueError, match="smaps_rollup"):
        Memory.of("Rss: 1 kB\n")


def test_an_answer_by_another_path_or_with_other_hits_is_no_figure() -> None:
    answer = streamed(0.0, [1.0], 1)
    assert answer.expect("split", 128) is answer
    for path, hits in (("prefill", 128), ("split", 64)):
        with pytest.raises(RuntimeError, match="wanted"):
            answer.expect(path, hits)
