"""Distributions in figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.loadgen.summary import Summary


def test_percentiles_are_figures_that_were_there() -> None:
    summary = Summary.of(range(1, 101))
    assert (summary.p(1), summary.p(50), summary.p(99), summary.p(99.9)) == (1, 50, 99, 100)
    assert (summary.count, summary.mean, summary.min, summary.max) == (100, 50.5, 1, 100)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_percentiles_ascend(figures: list[float]) -> None:
    found = list(Summary.of(figures).percentiles.values())
    assert found == sorted(found)
    assert set(found) <= set(figures)


def test_of_nothing_there_are_zeros() -> None:
    assert Summary.of([]).p(50) == 0
    assert Summary.of([]).mean == pytest.approx(0)
