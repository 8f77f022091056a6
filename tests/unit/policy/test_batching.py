from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.policy.api import Waiting
from dualpath.policy.attention import AttentionFit, attention_pairs
from dualpath.policy.batching import QuotaBatch, TokenBudget

PLENTY = 1 << 40


def test_the_budget_is_filled_in_order_and_the_last_one_is_cut() -> None:
    waiting = [Waiting(0, 30), Waiting(0, 50), Waiting(0, 50), Waiting(0, 1)]
    assert TokenBudget(100).select(waiting, PLENTY) == [30, 50, 20]


def test_nothing_overtakes_a_request_that_was_cut_or_has_no_room() -> None:
    assert TokenBudget(100).select([Waiting(0, 200), Waiting(0, 1)], PLENTY) == [100]
    waiting = [Waiting(0, 10, 10), Waiting(0, 10, 1000), Waiting(0, 10, 1)]
    assert TokenBudget(100).select(waiting, 100) == [10]


def test_a_chunk_shrinks_to_the_hbm_that_is_left() -> None:
    waiting = [Waiting(10, 10, hbm_fixed=20, hbm_per_token=2), Waiting(10, 40, 20, 2)]
    assert TokenBudget(100).select(waiting, 40 + 20 + 15) == [10, 7]


def test_a_head_without_hbm_gets_nothing() -> None:
    assert TokenBudget(100).select([Waiting(0, 10, hbm_fixed=11)], 10) == []
    assert TokenBudget(100).select([Waiting(0, 10, 10, 1)], 10) == []


def test_rows_are_limited() -> None:
    assert TokenBudget(100, max_rows=2).select([Waiting(0, 1)] * 5, PLENTY) == [1, 1]


@pytest.mark.parametrize("bad", [(0, 1), (1, 0)])
def test_an_empty_batch_is_no_policy(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="set chunk_tokens and max_rows to 1 or more"):
        TokenBudget(*bad)


@given(
    waiting=st.lists(
        st.builds(
            Waiting,
            cached=st.integers(0, 50),
            new=st.integers(1, 50),
            hbm_fixed=st.integers(0, 50),
            hbm_per_token=st.integers(0, 3),
        ),
        max_size=10,
    ),
    chunk=st.integers(1, 100),
    rows=st.integers(1, 5),
    hbm=st.integers(0, 300),
)
def test_batches_keep_to_all_limits_and_never_starve_the_head(
    waiting: list[Waiting], chunk: int, rows: int, hbm: int
) -> None:
    chosen = TokenBudget(chunk, rows).select(waiting, hbm)
    taken = list(zip(waiting, chosen, strict=False))
    assert len(chosen) <= min(rows, len(waiting))
    assert sum(chosen) <= chunk
    assert sum(w.hbm_fixed + n * w.hbm_per_token for w, n in taken) <= hbm
    assert all(1 <= n <= w.new for w, n in taken)
    assert all(n == w.new for w, n in taken[:-1])
    if waiting and waiting[0].hbm_fixed + waiting[0].hbm_per_token <= hbm:
        assert chosen


# ── compute quota ──────────────────────────────────────────────────────────────────────────────────
FIT = AttentionFit(fixed_s=0.0, per_token_s=0.0, per_pair_s=1e-6)


def test_attention_pairs_count_what_each_token_looks_at() -> None:
    assert attention_pairs(0, 4) == 1 + 2 + 3 + 4
    assert attention_pairs(10, 3) == 11 + 12 + 13
    fit = AttentionFit(fixed_s=1.0, per_token_s=0.1, per_pair_s=0.01)
    assert fit.seconds([(10, 3), (0, 4)]) == pytest.approx(1.0 + 0.7 + 0.46)


def test_a_fit_by_which_more_work_takes_less_time_is_refused() -> None:
    with pytest.raises(ValueError, match="less time for more work"):
        AttentionFit(0.0, -1e-9, 1.0)


def test_requests_enter_in_order_while_attention_stays_within_the_quota() -> None:
    # 100 · 10,000 + 5,050 pairs each: two take 2.01 s, three 3.02 s.
    waiting = [Waiting(10_000, 100)] * 5
    assert QuotaBatch(10_000, FIT, quota_s=2.02).select(waiting, PLENTY) == [100, 100]


def test_of_the_request_that_would_exceed_it_the_largest_chunk_that_fits_enters() -> None:
    waiting = [Waiting(10_000, 100)] * 5
    chosen = QuotaBatch(10_000, FIT, quota_s=2.5).select(waiting, PLENTY)
    assert chosen[:2] == [100, 100]
    rest = 2.5 - 2 * FIT.row_s(10_000, 100)
    assert FIT.row_s(10_000, chosen[2]) <= rest < FIT.row_s(10_000, chosen[2] + 1)
    # A long context leaves the same time to fewer tokens.
    assert QuotaBatch(10_000, FIT, quota_s=0.5).select([Waiting(50_000, 100)], PLENTY) == [9]


def test_a_head_whose_context_alone_exceeds_the_quota_gets_on_by_single_tokens() -> None:
    waiting = [Waiting(10_000_000, 5), Waiting(0, 5)]
    assert QuotaBatch(100, FIT, quota_s=1.0).select(waiting, PLENTY) == [1]


def test_the_fixed_part_counts_against_the_quota() -> None:
    fit = AttentionFit(fixed_s=0.4, per_token_s=0.01, per_pair_s=0.0)
    assert QuotaBatch(100, fit, quota_s=0.605).select([Waiting(0, 50)], PLENTY) == [20]


def test_a_quota_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="set more than 0"):
        QuotaBatch(100, FIT, quota_s=0.0)


@given(
    waiting=st.lists(
        st.builds(
            Waiting, cached=st.integers(0, 50_000), new=st.integers(1, 3000),
            hbm_fixed=st.integers(0, 50), hbm_per_token=st.integers(0, 3),
        ),
        max_size=12,
    ),
    quota_s=st.floats(1e-4, 10.0),
    fit=st.builds(
        AttentionFit, st.floats(0, 0.1), st.floats(0, 1e-4), st.floats(0, 1e-6), st.just(0.0)
    ),
    error=st.floats(-0.2, 0.2),
    hbm=st.integers(0, 5000),
)  # fmt: skip
def test_the_quota_is_exceeded_by_the_error_of_the_fit_at_most(
    waiting: list[Waiting], quota_s: float, fit: AttentionFit, error: float, hbm: int
) -> None:
    """What attention really takes differs from the fit by up to `error`."""
    chosen = QuotaBatch(4096, fit, quota_s).select(waiting, hbm)
    budget = TokenBudget(4096).select(waiting, hbm)
    rows = [(w.cached, n) for w, n in zip(waiting, chosen, strict=False)]
    took = fit.seconds(rows) * (1 + error)
    if rows and rows != [(waiting[0].cached, 1)]:
        assert took <= quota_s * (1 + abs(error)) * (1 + 1e-9)
    # Never more than the budget allows, and short of it by the quota alone, to the token.
    assert chosen == budget[: len(chosen)] or chosen[:-1] == budget[: len(chosen) - 1]
    assert bool(chosen) == bool(budget)
    if chosen != budget:
        last = len(chosen) - (chosen[-1] < budget[len(chosen) - 1])
        grown = [*chosen[:last], (chosen[last] if last < len(chosen) else 0) + 1]
        more = [(w.cached, n) for w, n in zip(waiting, grown, strict=False)]
        assert fit.seconds(more) > quota_s * (1 - 1e-9)
