from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.policy.api import ReadSplit
from dualpath.policy.read_path import Adaptive, SplitHalf
from dualpath.policy.registry import READ_PATHS, read_path_policy


def paths(name: str, hits: list[int], prefill_q: int = 0, decode_q: int = 0) -> list[str]:
    policy = read_path_policy(name)
    return [policy.choose(n, prefill_q, decode_q).path for n in hits]


def test_adaptive_reads_on_the_side_with_the_shorter_queue() -> None:
    assert paths("adaptive", [5, 5], prefill_q=1, decode_q=2) == ["prefill", "prefill"]
    assert paths("adaptive", [5, 5], prefill_q=2, decode_q=1) == ["decode", "decode"]


def test_adaptive_alternates_while_queues_are_equal() -> None:
    assert paths("adaptive", [5, 5, 5]) == ["prefill", "decode", "prefill"]
    policy = Adaptive()
    policy.choose(0, 0, 0)  # Reads nothing, so it is nobody's turn.
    assert policy.choose(1, 0, 0).path == "prefill"


def test_fixed_paths_ignore_the_queues() -> None:
    assert paths("prefill", [5, 5], prefill_q=99) == ["prefill", "prefill"]
    assert paths("decode", [5, 5], decode_q=99) == ["decode", "decode"]


def test_round_robin_takes_turns_over_requests_with_hits() -> None:
    assert paths("round-robin", [5, 0, 5, 0, 5]) == ["prefill", "none", "decode", "none", "prefill"]


def test_split_takes_turns_with_the_odd_block() -> None:
    policy = SplitHalf()
    assert [policy.choose(n, 0, 0).prefill_blocks for n in (5, 5, 4, 1, 1)] == [3, 2, 2, 1, 0]


@given(st.lists(st.integers(0, 9), max_size=40))
def test_split_gives_each_side_half_in_the_long_run(hits: list[int]) -> None:
    policy = SplitHalf()
    prefill = sum(policy.choose(n, 0, 0).prefill_blocks for n in hits)
    assert abs(2 * prefill - sum(hits)) <= 1


@given(st.sampled_from(sorted(READ_PATHS)), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3))
def test_shares_add_up_to_the_hits(name: str, hits: int, prefill_q: int, decode_q: int) -> None:
    split = read_path_policy(name).choose(hits, prefill_q, decode_q)
    assert split.hit_blocks == hits
    assert 0 <= split.prefill_blocks <= hits


@pytest.mark.parametrize(
    ("split", "path"),
    [((0, 0), "none"), ((3, 3), "prefill"), ((0, 3), "decode"), ((1, 3), "split")],
)
def test_the_path_is_named_after_who_reads(split: tuple[int, int], path: str) -> None:
    assert ReadSplit(*split).path == path
