"""The numbers of the paper's §3."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dualpath.policy.bottleneck import bottleneck_free


def test_the_papers_example_gives_its_range() -> None:
    report = bottleneck_free(2, 4, 8, 1.0, 10.0)
    assert (report.low, report.high) == (1 / 7, 7 / 2)
    assert report.free
    assert "inside the bottleneck-free range 0.143 ≤ P/D ≤ 3.5" in report.sentence()


@pytest.mark.parametrize(
    ("p", "d", "free", "limit"),
    [
        (1, 7, True, ""),
        (7, 2, True, ""),
        (1, 8, False, "PE CNIC, write side"),
        (4, 1, False, "DE CNIC, write side, DE DRAM"),
    ],
)
def test_both_ends_of_the_range_belong_to_it(p: int, d: int, free: bool, limit: str) -> None:
    report = bottleneck_free(p, d, 8, 1.0, 10.0)
    assert report.free is free
    if limit:
        assert report.sentence().endswith(f"limited by {limit}")


def test_each_bound_is_that_of_the_paper() -> None:
    report = bottleneck_free(1, 1, 4, 0.5, 20.0)
    g, s, m = Fraction(4), Fraction(1, 2), Fraction(20)
    bounds = {c.name: c.low if c.low is not None else c.high for c in report.constraints}
    assert bounds == {
        "PE CNIC, read side (2s ≤ g)": None,
        "PE CNIC, write side": pytest.approx(float(s / (g - s))),
        "DE CNIC, read side": pytest.approx(float((g - 2 * s) / s)),
        "DE CNIC, write side": pytest.approx(float((g - s) / (2 * s))),
        "PE DRAM (2·s·B ≤ M)": None,
        "DE DRAM": pytest.approx(float((m - 3) / 2)),
    }


def test_one_engine_per_node_with_equal_nics_is_never_free() -> None:
    report = bottleneck_free(1, 1, 1, 1.0, 10.0)
    assert not report.free
    assert report.sentence().startswith("no P/D is free of bottlenecks on these nodes")


def test_what_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        bottleneck_free(1, 0, 8, 1.0, 10.0)
