from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.lanes.nic import MIN_QUANTUM_BYTES, QUANTUM_S
from dualpath.lanes.pacer import Pacer

RATES = [1e6, 20e6, 50e6, 400e6, 2e9]


def quantum_for(rate: float) -> int:
    """As PacedNic chooses it."""
    return min(256 * 1024, max(int(rate * QUANTUM_S), MIN_QUANTUM_BYTES))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("timer_s", [0.0, 0.001])
def test_the_rate_is_kept_within_2_percent_over_a_second(rate: float, timer_s: float) -> None:
    """With timers as coarse as an event loop's: a wait ends at the next multiple of `timer_s`."""
    quantum = quantum_for(rate)
    pacer = Pacer(rate, quantum)
    now, sent = 100.0, 0
    while now < 101.0:
        delay = pacer.delay_s(now)
        if delay > 0:
            now += delay
            if timer_s:
                now = math.ceil(now / timer_s) * timer_s
            continue
        pacer.spend(now, quantum)
        sent += quantum
    assert sent == pytest.approx(rate, rel=0.02)


@given(
    st.floats(1e4, 1e10),
    st.integers(1, 1 << 20),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(0.001, 1.0)), max_size=100),
)
def test_no_window_holds_more_than_rate_and_burst(
    rate: float, quantum: int, steps: list[tuple[float, float]]
) -> None:
    pacer = Pacer(rate, quantum)
    assert pacer.burst_bytes <= max(2 * quantum, 0.002 * rate)
    now = 5.0
    log: list[tuple[float, int]] = []
    for pause, part in steps:
        now += pause
        while pacer.delay_s(now) <= 0 and len(log) < 3000:
            nbytes = max(int(quantum * part), 1)
            pacer.spend(now, nbytes)
            log.append((now, nbytes))
            if nbytes * 1000 < rate / 1000:
                break
    total = 0
    for at, nbytes in log:
        total += nbytes
        assert total <= pacer.burst_bytes + rate * (at - log[0][0]) * 1.000001 + 1


def test_the_delay_is_what_it_takes_to_pay_the_debt() -> None:
    pacer = Pacer(1000.0, 100)
    pacer.spend(0.0, 200)
    assert pacer.delay_s(0.0) == pytest.approx(0.1)
    assert pacer.delay_s(0.05) == pytest.approx(0.05)
    assert pacer.delay_s(0.2) == 0.0


def test_given_back_bytes_can_be_sent() -> None:
    pacer = Pacer(1000.0, 100)
    pacer.spend(0.0, 200)
    pacer.spend(0.0, -100)
    assert pacer.delay_s(0.0) == 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    pacer = Pacer(1000.0, 100)
    pacer.spend(10.0, 200)
    assert pacer.delay_s(9.0) == pytest.approx(0.1)
    assert pacer.delay_s(9.05) == pytest.approx(0.05)


def test_impossible_pacers_are_refused() -> None:
    with pytest.raises(ValueError, match="rate"):
        Pacer(0, 100)
    with pytest.raises(ValueError, match="quantum"):
        Pacer(1, 0)
