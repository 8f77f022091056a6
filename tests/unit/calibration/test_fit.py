"""Fits of forwards' seconds, and the order in which terms are given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.calibration.fit import Sample, fit_forward, predict

GRID = [(c, n) for c in (0, 500, 4000) for n in (16, 128, 1024)]


def samples(fixed: float, token: float, pair: float) -> list[Sample]:
    unit = [Sample(c, n, 1.0) for c, n in GRID]
    return [Sample(s.cached, s.new, fixed + token * s.new + pair * s.pairs) for s in unit]


@given(
    st.floats(1e-4, 1e-1), st.floats(1e-6, 1e-3), st.floats(1e-10, 1e-7)
)  # from accelerators to slow CPUs
def test_what_follows_the_formula_is_fitted_exactly(
    fixed: float, token: float, pair: float
) -> None:
    measured = samples(fixed, token, pair)
    fit = fit_forward(measured)
    assert fit.error < 1e-3
    for sample in measured:
        assert predict(fit, sample) == pytest.approx(sample.seconds, rel=1e-2)


@given(st.lists(st.floats(1e-5, 1e2), min_size=len(GRID), max_size=len(GRID)))
def test_whatever_is_measured_no_term_is_negative(seconds: list[float]) -> None:
    fit = fit_forward([Sample(c, n, s) for (c, n), s in zip(GRID, seconds, strict=True)])
    assert min(fit.fixed_s, fit.per_token_s, fit.per_pair_s) >= 0
    assert fit.fixed_s + fit.per_token_s + fit.per_pair_s > 0


def test_one_sample_gives_the_time_per_token() -> None:
    fit = fit_forward([Sample(0, 100, 0.5)])
    assert fit.per_token_s == pytest.approx(0.005)
    assert (fit.fixed_s, fit.per_pair_s) == (0, 0)


def test_chunks_of_one_length_still_tell_pairs_from_tokens() -> None:
    measured = [s for s in samples(0.0, 1e-4, 1e-8) if s.new == 128]
    fit = fit_forward(measured)
    assert fit.fixed_s == 0
    assert fit.per_pair_s == pytest.approx(1e-8, rel=1e-3)


def test_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="took some time"):
        fit_forward([Sample(0, 1, 0.0)])
    with pytest.raises(ValueError, match="took some time"):
        fit_forward([])
