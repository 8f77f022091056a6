"""What the isolation benchmark makes of its measurements."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualpath.cli.bench.isolation import Figures, isolation, table
from dualpath.cli.bench.isolation_member import Measured, Members, Shape
from dualpath.cli.started import ends_in_order
from dualpath.cli.words import WRONG_USE

SHAPE = Shape(
    members=3,
    bytes_per_s=100_000_000,
    quantum=50_000,
    piece=40_000,
    write=1 << 20,
    writes=2,
    pause_s=0.005,
)


def test_times_on_the_wire_follow_from_the_shape() -> None:
    assert SHAPE.burst_s == pytest.approx(0.0008)
    assert SHAPE.chunk_s == pytest.approx(0.0005)
    # Of larger quanta than a NIC has by default, too; and never more than a NIC sends at a time.
    fast = replace(SHAPE, bytes_per_s=1_000_000_000, quantum=1_000_000)
    assert fast.chunk_s == pytest.approx(0.001)
    assert replace(SHAPE, quantum=10_000_000).chunk_s == pytest.approx(0.005)


def test_a_burst_lasts_until_it_is_over_for_every_member() -> None:
    rounds = [
        [Measured([1.0, 5.0], 10.0, 0.5), Measured([2.0, 3.0], 30.0, 0.25)],
        [Measured([4.0], 20.0, 0.5), Measured([0.5], 20.0, 0.25)],
    ]
    figures = Figures.of(rounds)
    assert figures.bursts_s == [2.0, 4.0, 5.0]
    assert figures.low_bytes_per_s == 20.0
    assert figures.cores == 0.75
    assert [figures.quantile(q) for q in (0.0, 0.33, 0.34, 0.5, 0.99, 1.0)] == [2, 2, 4, 4, 5, 5]


def test_the_table_compares_with_the_baseline_in_chunks() -> None:
    def figures(p50: float, p99: float) -> Figures:
        return Figures([p50] * 98 + [p99] * 2, 1e8, 1.0)

    lines = table(
        SHAPE,
        {
            "baseline": figures(0.001, 0.002),
            "lanes on": figures(0.00105, 0.00275),
            "lanes off": figures(0.006, 0.008),
        },
    )
    assert any("lanes on" in line and "1.05 ×" in line and "+1.5 chunks" in line for line in lines)
    assert any("lanes off" in line and "6.00 ×" in line for line in lines)


def test_a_rate_that_is_none_is_refused_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert isolation("fast", "64KiB", "64KiB", 2, 1, 1, None) == WRONG_USE
    assert "write for example" in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_refused_before_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "missing" / "isolation.svg"
    assert isolation("200MB/s", "64KiB", "64KiB", 2, 1, 1, plot) == WRONG_USE
    out, err = capsys.readouterr()
    assert "cannot be written (No such file or directory); name another file" in err
    assert not out


def test_members_that_end_at_once_do_not_see_each_other_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that lost another would fail, and say so where the user asked for the end."""
    done: list[str] = []

    class Process:
        def __init__(self, **_: Any) -> None:
            pass

        def start(self) -> None:
            pass

        def kill(self) -> None:
            done.append("kill")

        def join(self, timeout: float | None = None) -> None:
            done.append("join")

        def is_alive(self) -> bool:
            return False

    context = multiprocessing.get_context("spawn")
    monkeypatch.setattr(type(context), "Process", Process)
    members = Members(SHAPE)
    members._start()
    members.__exit__(KeyboardInterrupt)
    assert done == ["kill"] * 3 + ["join"] * 3


def test_members_that_are_not_to_be_are_ended_once_they_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One whose start is broken off in the middle would fail, and say so."""
    done: list[str] = []
    members = Members(SHAPE)

    def start() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        # The handler has run when this returns: Python's code goes on.
        done.append("started")

    monkeypatch.setattr(members, "_start", start)
    monkeypatch.setattr(members, "_end", lambda *, at_once: done.append(f"ended {at_once}"))
    with ends_in_order(), pytest.raises(KeyboardInterrupt):
        members.__enter__()
    assert done == ["started", "ended True"]
