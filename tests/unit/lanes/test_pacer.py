from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.lanes.nic import MIN_QUANTUM_BYTES, QUANTUM_S
from dualpath.lanes.pacer import Pacer

RATES = [1e6, 20e6, 50e6, 400e6, 2e9]
HIGH, LOW = 0, 1


def quantum_for(rate: float) -> int:
    """As PacedNic chooses it."""
    return min(256 * 1024, max(int(rate * QUANTUM_S), MIN_QUANTUM_BYTES))


def paced(rate: float = 1000.0, quantum: int = 100, lanes: int = 2) -> Pacer:
    """At second 0, with nothing owed."""
    pacer = Pacer(rate, quantum, lanes)
    pacer.advance(0.0, waiting=False)
    return pacer


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("late_s", [0.0, 0.00005, 0.0004])
def test_the_rate_is_kept_within_2_percent_over_a_second(rate: float, late_s: float) -> None:
    """Wake-ups come late by `late_s`, as those of an event loop do."""
    quantum = quantum_for(rate)
    pacer = Pacer(rate, quantum)
    now, sent = 100.0, 0
    while now < 101.0:
        pacer.advance(now, waiting=True)
        delay = pacer.delay_s(0, quantum)
        if delay > 0:
            now += delay + late_s
            continue
        pacer.spend(0, quantum)
        sent += quantum
    assert sent == pytest.approx(rate, rel=0.02)


Step = st.tuples(st.floats(0, 0.05), st.integers(0, 2), st.floats(0.001, 1.0), st.booleans())


@given(st.floats(1e4, 1e10), st.integers(1, 1 << 20), st.lists(Step, max_size=150))
def test_no_window_holds_more_than_rate_and_burst(
    rate: float, quantum: int, steps: list[tuple[float, int, float, bool]]
) -> None:
    pacer = Pacer(rate, quantum, lanes=3)
    assert pacer.burst_bytes <= max(2 * quantum, 0.002 * rate)
    now = 5.0
    log: list[tuple[float, int]] = []
    for pause, lane, part, waiting in steps:
        now += pause
        pacer.advance(now, waiting=waiting)
        pacer.end_pause()
        nbytes = max(int(quantum * part), 1)
        while pacer.delay_s(lane, nbytes) <= 0 and len(log) < 200:
            pacer.spend(lane, nbytes)
            log.append((now, nbytes))
            if nbytes * 1000 < rate / 1000:
                break
    for first in range(len(log)):
        total = 0
        for at, nbytes in log[first:]:
            total += nbytes
            allowed = pacer.burst_bytes + rate * (at - log[first][0]) * 1.000001
            assert total <= allowed + 1 + len(log) * 0.5


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100)), max_size=50))
def test_a_chunk_may_go_after_the_delay_and_not_before(
    lanes: int, chunks: list[tuple[int, int]]
) -> None:
    pacer = paced(lanes=lanes)
    now = 0.0
    for lane, nbytes in chunks:
        lane %= lanes
        delay = pacer.delay_s(lane, nbytes)
        if delay > 0:
            pacer.advance(now + delay * 0.9, waiting=True)
            # Half a byte is as fine as it gets.
            assert pacer.delay_s(lane, nbytes) > 0 or delay * 0.1 * pacer.bytes_per_s < 0.5001
            pacer.advance(now + delay, waiting=True)
            assert pacer.delay_s(lane, nbytes) == 0
            now += delay
        pacer.spend(lane, nbytes)


def test_the_delay_is_what_it_takes_to_pay_the_debt() -> None:
    pacer = paced()
    pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) == pytest.approx(0.1)
    pacer.advance(0.05, waiting=True)
    assert pacer.delay_s(HIGH, 100) == pytest.approx(0.05)
    pacer.advance(0.2, waiting=True)
    assert pacer.delay_s(HIGH, 100) == 0.0


def test_a_chunk_of_the_low_lane_holds_up_none_of_the_high_one() -> None:
    pacer = paced()
    pacer.spend(LOW, 100)
    assert pacer.delay_s(HIGH, 50) == 0.0
    assert pacer.delay_s(LOW, 1) == pytest.approx(0.1)


def test_but_no_more_than_the_burst_leaves_at_once() -> None:
    pacer = paced()
    pacer.spend(HIGH, 100)
    pacer.advance(0.3, waiting=True)
    for _ in range(2):
        assert pacer.delay_s(LOW, 100) == 0.0
        pacer.spend(LOW, 100)
    assert pacer.burst_bytes == 200
    assert pacer.delay_s(HIGH, 50) == pytest.approx(0.05)


def test_what_was_put_off_is_paid_before_the_low_lane_sends_again() -> None:
    pacer = paced()
    pacer.spend(LOW, 100)
    pacer.spend(HIGH, 50)
    pacer.advance(0.05, waiting=True)
    assert pacer.delay_s(HIGH, 10) == 0.0
    assert pacer.delay_s(LOW, 10) == pytest.approx(0.1)


def test_time_of_an_idle_port_is_lost() -> None:
    pacer = paced()
    pacer.advance(100.0, waiting=False)
    pacer.end_pause()
    pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) == pytest.approx(0.1)


def test_a_short_pause_is_made_up_for() -> None:
    """Two chunks' time here; what comes without asking does not end it."""
    pacer = paced()
    pacer.spend(HIGH, 100)
    pacer.advance(0.15, waiting=False)
    pacer.spend(HIGH, 1)
    pacer.advance(0.2, waiting=False)
    pacer.end_pause()
    pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 1) == pytest.approx(0.001)
    pacer.advance(0.201 + 0.21, waiting=False)
    pacer.end_pause()
    pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 1) == pytest.approx(0.1)


def test_late_wake_ups_are_made_up_for_within_bounds() -> None:
    pacer = paced()
    pacer.spend(HIGH, 100)
    pacer.advance(0.13, waiting=True)
    pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) == pytest.approx(0.07)
    pacer.advance(100.0, waiting=True)
    for _ in range(2):
        assert pacer.delay_s(HIGH, 100) == 0.0
        pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) == pytest.approx(0.1)


def test_given_back_bytes_can_be_sent() -> None:
    pacer = paced()
    pacer.spend(HIGH, 100)
    pacer.give_back(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) == 0.0
    pacer.give_back(HIGH, 10_000)
    for _ in range(2):
        pacer.spend(HIGH, 100)
    assert pacer.delay_s(HIGH, 100) > 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    pacer = Pacer(1000.0, 100)
    pacer.advance(10.0, waiting=True)
    pacer.spend(0, 100)
    pacer.advance(9.0, waiting=True)
    assert pacer.delay_s(0, 1) == pytest.approx(0.1)
    pacer.advance(9.05, waiting=True)
    assert pacer.delay_s(0, 1) == pytest.approx(0.05)


def test_impossible_pacers_are_refused() -> None:
    with pytest.raises(ValueError, match="rate"):
        Pacer(0, 100)
    with pytest.raises(ValueError, match="quantum"):
        Pacer(1, 0)
