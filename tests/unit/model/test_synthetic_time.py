from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.emulated_time import EARLY_S, MAX_CREDIT_S, EmulatedTime


def run(time: EmulatedTime, now: float, duration: float, late: float) -> float:
    """One computation; a sleep wakes up `late`. Returns when it was over."""
    time.begin(now, duration)
    pause = time.pause(now)
    now += pause + (late if pause else 0.0)
    time.end(now)
    return now


def test_a_single_computation_takes_its_time() -> None:
    assert run(EmulatedTime(), 100.0, 0.5, 0.0) == pytest.approx(100.5)


@given(st.lists(st.tuples(st.floats(0, 0.02), st.floats(0, 0.004)), min_size=1, max_size=200))
def test_late_wake_ups_and_short_computations_do_not_add_up(
    steps: list[tuple[float, float]],
) -> None:
    time, now = EmulatedTime(), 50.0
    for duration, late in steps:
        now = run(time, now, duration, late)
    wanted = 50.0 + sum(duration for duration, _ in steps)
    credit = sum(late for _, late in steps)
    assert wanted - EARLY_S - 1e-6 <= now
    # Ahead by at most one short computation; behind by no more than lateness that had no time to be made up.
    assert now <= wanted + credit + 1e-6


def test_a_late_wake_up_is_made_up_for_by_the_next_computations() -> None:
    time = EmulatedTime()
    now = run(time, 0.0, 0.010, late=0.004)
    assert run(time, now, 0.010, late=0.0) == pytest.approx(0.020)


def test_idle_time_is_no_credit() -> None:
    time = EmulatedTime()
    run(time, 0.0, 0.010, 0.0)
    assert run(time, 5.0, 0.010, 0.0) == pytest.approx(5.010)


def test_a_stalled_process_does_not_rush_for_long() -> None:
    time = EmulatedTime()
    now = run(time, 0.0, 0.010, late=10.0)
    for _ in range(100):
        now = run(time, now, 0.010, late=0.0)
    assert now == pytest.approx(10.010 + 1.0 - MAX_CREDIT_S, abs=EARLY_S)


def test_a_computation_that_was_given_up_leaves_no_credit_twice() -> None:
    time = EmulatedTime()
    now = run(time, 0.0, 0.010, late=0.005)
    time.begin(now, 0.010)  # Cancelled before its end.
    assert run(time, 1.0, 0.010, late=0.0) == pytest.approx(1.010)
