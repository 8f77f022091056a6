"""Made trajectories have the statistics of the paper's Table 2."""

from __future__ import annotations

import pytest

from dualpath.loadgen.traces import TABLE_2, describe, make_trace, row_of

FIELDS = ("turns", "append", "generate", "total", "context")


@pytest.mark.parametrize(
    "max_len",
    [
        "32K",
        pytest.param("48K", marks=pytest.mark.slow),
        pytest.param("64K", marks=pytest.mark.slow),
    ],
)
def test_means_over_500_trajectories_are_within_two_percent(max_len: str) -> None:
    trace = make_trace(max_len, trajectories=500, seed=7)
    stats, row = describe(trace), TABLE_2[max_len]
    assert stats.trajectories == 500
    for name in FIELDS:
        assert getattr(stats, name).mean == pytest.approx(getattr(row, name), rel=0.02), name
    assert max(t.total_tokens for t in trace.trajectories) <= row.max_tokens
    # Agents differ: some have few turns with much in them, some many with little.
    assert stats.turns.p(90) > 3 * stats.turns.p(10)
    assert stats.append.p(90) > 3 * stats.append.p(10)
    assert stats.ideal_hit_rate > 0.95


@pytest.mark.parametrize("seed", range(5))
def test_scaled_traces_keep_the_scaled_means(seed: int) -> None:
    trace = make_trace("64K", trajectories=100, seed=seed, lengths=0.1, turns=0.1)
    row = row_of(trace)
    assert row is not None
    assert row.turns == pytest.approx(15.7)
    assert row.append == pytest.approx(429)
    assert row.max_tokens == round(65536 * 0.1)
    stats = describe(trace)
    for name in FIELDS:
        assert getattr(stats, name).mean == pytest.approx(getattr(row, name), rel=0.05), name


def test_the_seed_decides_everything() -> None:
    one, same, other = (
        make_trace("32K", trajectories=5, seed=seed, lengths=0.1, turns=0.1) for seed in (1, 1, 2)
    )
    assert one == same
    assert one.trajectories != other.trajectories


def test_one_short_trajectory_can_be_made() -> None:
    (trajectory,) = make_trace("32K", trajectories=1, lengths=0.01, turns=0.02).trajectories
    assert 2 <= trajectory.total_tokens <= 328


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_len": "16K"}, "32K, 48K, 64K"),
        ({"trajectories": 0}, "1 to 1000000"),
        ({"lengths": 0.0}, "more than 0"),
        ({"turns": float("nan")}, "more than 0"),
        ({"lengths": 0.001}, "scale less"),
        ({"lengths": 1e30}, "too much"),
        ({"turns": 0.001}, "scale less"),
        ({"trajectories": 1_000_000}, "ask for fewer trajectories"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_trace(**{"max_len": "32K", **arguments})  # type: ignore[arg-type]
