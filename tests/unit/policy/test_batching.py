from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.policy.api import Waiting
from dualpath.policy.batching import TokenBudget

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
