"""The isolation benchmark runs whole: processes, sockets, NICs, and ends without leaving any."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dualpath.cli.bench.isolation import isolation, measure
from dualpath.cli.bench.isolation_member import CASES, Members, Shape
from dualpath.cli.words import WRONG_USE

SHAPE = Shape(
    members=3,
    bytes_per_s=20_000_000,
    quantum=8192,
    piece=4096,
    write=65536,
    writes=2,
    pause_s=0.001,
)


@pytest.mark.slow
def test_every_case_has_its_bursts_and_its_low_traffic() -> None:
    figures = measure(SHAPE, rounds=2, bursts=5)
    assert tuple(figures) == CASES
    for found in figures.values():
        assert len(found.bursts_s) == 10
        assert found.bursts_s[0] > 0
        assert 0 < found.low_bytes_per_s <= SHAPE.bytes_per_s * 1.05
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_it_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "isolation.svg"
    assert isolation("20MB/s", "8KiB", "4KiB", 2, 1, 3, plot) == 0
    printed = capsys.readouterr().out
    for case in CASES:
        assert case in printed
    ElementTree.parse(plot)


@pytest.mark.parametrize("shape", [("0", "8KiB", "4KiB"), ("1MB/s", "0", "1"), ("1MB/s", "1", "0")])
def test_what_could_not_be_measured_is_a_sentence(
    shape: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert isolation(*shape, 2, 1, 1, None) == WRONG_USE
    assert "must be more than 0" in capsys.readouterr().err


def test_a_member_that_dies_is_an_error_and_not_a_hang() -> None:
    with Members(SHAPE) as members:
        members._processes[1].kill()
        with pytest.raises(RuntimeError, match="ended by itself"):
            members.measure("lanes on", 1_000_000, 1)
    assert not multiprocessing.active_children()
