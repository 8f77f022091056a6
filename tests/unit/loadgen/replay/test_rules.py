"""The paper's stopping rules, arrivals, and the search for a capacity."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean

import pytest

from dualpath.loadgen.replay import (
    AgentRecord,
    ClientLag,
    OpenLoop,
    ReplayError,
    ReplayResult,
    Slo,
    StopRules,
    TurnRecord,
    search_aps,
    slo_misses,
)
from dualpath.loadgen.replay.arrivals import arrivals
from dualpath.loadgen.replay.rules import Judge
from dualpath.loadgen.summary import Summary
from dualpath.loadgen.traces import Trace, Trajectory, Turn

RULES = StopRules(ttft_s=4, window_s=10, lookback_s=100, tolerance=0.05, min_turns=5)


def judge(ttft_s: float, until_s: int = 120) -> Judge:
    """A first token each second, always after the same wait."""
    told = Judge(RULES)
    for now_s in range(1, until_s + 1):
        told.first_token(now_s, ttft_s)
    return told


def test_a_ttft_above_the_limit_is_an_overload() -> None:
    assert judge(4.1).verdict(20.0) == "overloaded"
    assert judge(3.9).verdict(20.0) == ""


def test_only_the_window_counts() -> None:
    told = judge(9.0, until_s=50)
    for now_s in range(51, 61):
        told.first_token(now_s, 1.0)
    assert told.verdict(60.0) == ""
    assert told.window(60.0) == (10, 1.0)


def test_a_server_that_answers_nothing_is_overloaded_too() -> None:
    told = judge(1.0, until_s=3)
    assert told.verdict(30.0, [3.9] * 50) == ""
    assert told.verdict(30.0, [4.5] * 5) == "overloaded"
    assert told.verdict(30.0, [4.5] * 4) == ""


def test_a_ttft_as_long_ago_is_steady() -> None:
    assert judge(2.0).verdict(109.0) == ""
    assert judge(2.0).verdict(111.0) == "steady"
    grown = judge(2.0, until_s=100)
    for now_s in range(101, 121):
        grown.first_token(now_s, 2.2)
    assert grown.verdict(120.0) == ""


def test_few_answers_say_nothing() -> None:
    told = Judge(RULES)
    for now_s in (1.0, 2.0, 111.0, 112.0):
        told.first_token(now_s, 9.0)
    assert told.verdict(113.0) == ""


def test_the_papers_times_are_divided_by_the_scale() -> None:
    divided = StopRules(max_s=60).divided(10)
    assert (divided.ttft_s, divided.window_s, divided.lookback_s) == (0.4, 15.0, 180.0)
    assert (divided.tolerance, divided.max_s) == (0.05, 60)
    assert Judge(divided).verdict(61.0) == "max_s"
    assert Slo(percent=99).divided(10) == Slo(0.4, 0.005, 99)


# ── arrivals ───────────────────────────────────────────────────────────────────────────────────────
def timed(*times_s: float | None) -> Trace:
    return Trace(
        "t", tuple(Trajectory(f"{i}", (Turn(1, 1),), arrival_s=s) for i, s in enumerate(times_s))
    )


def test_poisson_arrivals_have_the_rate_and_are_seeded() -> None:
    trace, load = timed(None), OpenLoop(aps=4.0, seed=3)
    times = list(islice(arrivals(trace, load), 4000))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.1)
    gaps = [b - a for a, b in pairwise(times)]
    # Of an exponential distribution the mean is the standard deviation.
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * fmean(gaps) ** 2, rel=0.2)
    assert times == list(islice(arrivals(trace, load), 4000))
    assert len(list(arrivals(trace, OpenLoop(aps=4.0, agents=7)))) == 7


def test_recorded_arrivals_are_the_traces_and_go_on_in_laps() -> None:
    assert list(arrivals(timed(0.0, 1.0, 4.0), OpenLoop())) == [0.0, 1.0, 4.0]
    assert list(arrivals(timed(0.0, 1.0, 4.0), OpenLoop(agents=5))) == [0.0, 1.0, 4.0, 6.0, 7.0]
    with pytest.raises(ReplayError, match="give a rate"):
        arrivals(timed(0.0, None), OpenLoop())


# ── the SLO ────────────────────────────────────────────────────────────────────────────────────────
def result(
    ttft_s: float, *, tpot_s: float = 0.01, error: str = "", ended: str = "done"
) -> ReplayResult:
    turns = [
        TurnRecord(
            n, 0, 10, 3, 0.0, first_s=ttft_s, second_s=ttft_s + tpot_s, last_s=ttft_s + 2 * tpot_s,
            end_s=ttft_s + 2 * tpot_s, generated_tokens=3, error=error,
        )
        for n in range(10)
    ]  # fmt: skip
    agents = [AgentRecord(n, "t", 1, 0.0, 1.0, 1, error) for n in range(10)]
    return ReplayResult(
        turns, agents, ClientLag(Summary(), Summary(), 0.0), ended, 0.0, 100.0, "ids", "m",
        window_s=(0.0, 100.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (result(3.9), None),
        (result(4.1), "mean TTFT is 4.1 s, above 4 s"),
        (result(1.0, tpot_s=0.06), "mean TPOT is 0.06 s"),
        (result(1.0, error="timeout"), "turns failed: {'timeout': 10}"),
        (result(1.0, error="stopped"), "no turn was answered"),
        (result(1.0, ended="overloaded"), "stopped"),
    ],
)
def test_the_slo_says_what_was_missed(found: ReplayResult, said: str | None) -> None:
    misses = slo_misses(Slo(), found)
    assert len(misses) == (said is not None)
    assert said is None or said in misses[0]


@pytest.mark.parametrize(
    ("limit", "bounded"), [(0.5, True), (3.0, True), (7.0, True), (100.0, False), (0.01, True)]
)
async def test_the_search_finds_the_highest_rate_within_the_slo(
    limit: float, bounded: bool
) -> None:
    async def run(aps: float) -> ReplayResult:
        return result(1.0 if aps <= limit else 5.0)

    found = await search_aps(run, Slo(), low=0.1, high=10.0, precision=0.05)
    assert found.bounded == bounded
    if limit < 0.1:
        assert found.aps is None
    else:
        assert found.aps is not None
        assert min(limit, 10.0) / 1.05 <= found.aps <= limit
    assert len(found.steps) <= 12


def test_records_become_figures() -> None:
    found = result(2.0)
    assert found.latencies().ttst_s.mean == pytest.approx(0.01)
    assert found.latencies().tpot_s.p(50) == pytest.approx(0.01)
    assert found.jct_s == 1.0
    said = found.as_dict()
    assert said["turn_records"]["first_s"] == [2.0] * 10
    assert "explain" not in said["turn_records"]
    assert "turn_records" not in found.as_dict(records=False)
    assert result(2.0, error="timeout").warnings[0].startswith("10 turns failed: timeout")
