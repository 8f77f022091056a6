from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.policy.api import ReadSide, ReadSplit
from dualpath.policy.read_path import Adaptive, Split, SplitHalf
from dualpath.policy.registry import READ_PATHS, read_path_policy

IDLE = ReadSide(0)


def paths(name: str, hits: list[int], prefill_q: int = 0, decode_q: int = 0) -> list[str]:
    policy = read_path_policy(name)
    sides = ReadSide(prefill_q), ReadSide(decode_q)
    return [policy.choose(n, *sides).path for n in hits]


def test_adaptive_reads_on_the_side_with_the_shorter_queue() -> None:
    assert paths("adaptive", [5, 5], prefill_q=1, decode_q=2) == ["prefill", "prefill"]
    assert paths("adaptive", [5, 5], prefill_q=2, decode_q=1) == ["decode", "decode"]


def test_adaptive_alternates_while_queues_are_equal() -> None:
    assert paths("adaptive", [5, 5, 5]) == ["prefill", "decode", "prefill"]
    policy = Adaptive()
    policy.choose(0, IDLE, IDLE)  # Reads nothing, so it is nobody's turn.
    assert policy.choose(1, IDLE, IDLE).path == "prefill"


def test_fixed_paths_ignore_the_queues() -> None:
    assert paths("prefill", [5, 5], prefill_q=99) == ["prefill", "prefill"]
    assert paths("decode", [5, 5], decode_q=99) == ["decode", "decode"]


def test_round_robin_takes_turns_over_requests_with_hits() -> None:
    assert paths("round-robin", [5, 0, 5, 0, 5]) == ["prefill", "none", "decode", "none", "prefill"]


def test_halves_take_turns_with_the_odd_block() -> None:
    policy = SplitHalf()
    assert [policy.choose(n, IDLE, IDLE).prefill_blocks for n in (5, 5, 4, 1, 1)] == [3, 2, 2, 1, 0]


@given(st.lists(st.integers(0, 9), max_size=40))
def test_halves_give_each_side_half_in_the_long_run(hits: list[int]) -> None:
    policy = SplitHalf()
    prefill = sum(policy.choose(n, IDLE, IDLE).prefill_blocks for n in hits)
    assert abs(2 * prefill - sum(hits)) <= 1


@given(st.sampled_from(sorted(READ_PATHS)), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3))
def test_shares_add_up_to_the_hits(name: str, hits: int, prefill_q: int, decode_q: int) -> None:
    split = read_path_policy(name, 1).choose(hits, ReadSide(prefill_q), ReadSide(decode_q))
    assert split.hit_blocks == hits
    assert 0 <= split.prefill_blocks <= hits


@pytest.mark.parametrize(
    ("split", "path"),
    [((0, 0), "none"), ((3, 3), "prefill"), ((0, 3), "decode"), ((1, 3), "split")],
)
def test_the_path_is_named_after_who_reads(split: tuple[int, int], path: str) -> None:
    assert ReadSplit(*split).path == path


# ── split ──────────────────────────────────────────────────────────────────────────────────────────
def share(
    hits: int, prefill: tuple[int, float], decode: tuple[int, float], min_blocks: int = 1
) -> int:
    """Of blocks of one token."""
    return Split(1, min_blocks).choose(hits, ReadSide(*prefill), ReadSide(*decode)).prefill_blocks


def test_a_split_lets_both_sides_finish_together() -> None:
    assert share(100, (0, 1), (0, 1)) == 50
    assert share(100, (20, 1), (0, 1)) == 40
    assert share(100, (0, 1), (60, 1)) == 80
    assert share(90, (0, 2), (0, 1)) == 60
    # 30 wait at 3 a second, 20 at 2: both have 10 s of reads, and share the hit as their rates.
    assert share(100, (30, 3), (20, 2)) == 60


def test_a_side_whose_queue_outlasts_the_read_reads_nothing() -> None:
    assert share(100, (101, 1), (0, 1)) == 0
    assert share(100, (0, 1), (500, 1)) == 100
    assert share(100, (100, 1), (0, 4)) == 0


def test_pieces_are_not_smaller_than_the_least() -> None:
    assert share(100, (90, 1), (0, 1), min_blocks=5) == 5
    assert share(100, (91, 1), (0, 1), min_blocks=6) == 0
    assert share(100, (0, 1), (91, 1), min_blocks=6) == 100
    assert share(9, (1, 1), (0, 1), min_blocks=5) == 0
    assert share(9, (0, 1), (1, 1), min_blocks=5) == 9


def test_idle_sides_take_turns_with_the_odd_block_and_with_what_is_too_small() -> None:
    policy = Split(1, 2)
    assert [policy.choose(5, IDLE, IDLE).prefill_blocks for _ in range(4)] == [3, 2, 3, 2]
    assert [policy.choose(3, IDLE, IDLE).prefill_blocks for _ in range(4)] == [3, 0, 3, 0]


@pytest.mark.parametrize("bad", [(0, 1), (1, 0)])
def test_pieces_of_nothing_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="use 1 or more"):
        Split(*bad)


@given(
    hits=st.integers(1, 400),
    queues=st.tuples(st.integers(0, 30_000), st.integers(0, 30_000)),
    rates=st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)),
    min_blocks=st.integers(1, 9),
)
def test_no_other_allowed_split_ends_earlier(
    hits: int, queues: tuple[int, int], rates: tuple[float, float], min_blocks: int
) -> None:
    block = 64

    def ends(prefill_blocks: int) -> float:
        """When the last side has read its piece; a side without one does not matter."""
        pieces = (prefill_blocks, hits - prefill_blocks)
        return max(
            (q + n * block) / rate for q, n, rate in zip(queues, pieces, rates, strict=True) if n
        )

    sides = [ReadSide(q, rate) for q, rate in zip(queues, rates, strict=True)]
    chosen = Split(block, min_blocks).choose(hits, *sides).prefill_blocks
    allowed = [0, *range(min_blocks, hits - min_blocks + 1), hits]
    assert chosen in allowed
    # Of a side that would be left with less than a piece the other side reads all: no more than one piece later.
    piece_s = min_blocks * block / min(rates)
    assert ends(chosen) <= min(map(ends, allowed)) + piece_s
