"""What a trace says of its marks."""

from __future__ import annotations

import pytest

from dualpath.prefill.trace import ForwardTrace


def trace(*marks: tuple[str, int, float]) -> ForwardTrace:
    made = ForwardTrace()
    made.marks.extend(marks)
    return made


def moved(layer: int, begin: float, end: float) -> list[tuple[str, int, float]]:
    return [("arrive", layer, begin), ("arrived", layer, end)]


def left(layer: int, begin: float, end: float) -> list[tuple[str, int, float]]:
    return [("leave", layer, begin), ("left", layer, end)]


def computed(layer: int, begin: float, end: float) -> list[tuple[str, int, float]]:
    return [("compute", layer, begin), ("computed", layer, end)]


def test_a_layer_overlaps_where_another_arrives_or_leaves_meanwhile() -> None:
    assert trace(*computed(0, 1, 2), *moved(1, 1.5, 3)).overlapped_layers() == 1
    assert trace(*computed(1, 1, 2), *left(0, 0.5, 1.2)).overlapped_layers() == 1
    assert trace(*computed(1, 1, 2), *moved(2, 0, 5)).overlapped_layers() == 1


def test_what_ends_before_or_begins_after_its_compute_does_not_overlap() -> None:
    apart = trace(*moved(1, 0, 1), *computed(0, 1, 2), *left(0, 2, 3), *moved(2, 2, 3))
    assert apart.overlapped_layers() == 0


def test_a_layers_own_moves_do_not_count() -> None:
    assert trace(*computed(0, 1, 2), *moved(0, 0, 1.5), *left(0, 1.5, 3)).overlapped_layers() == 0


def test_with_several_rows_an_interval_lasts_from_the_first_to_the_last() -> None:
    rows = trace(
        ("arrive", 1, 0.0), ("arrive", 1, 0.5), ("arrived", 1, 1.0), ("arrived", 1, 2.5),
        *computed(0, 2, 3),
    )  # fmt: skip
    assert rows.intervals("arrive", "arrived") == {1: (0.0, 2.5)}
    assert rows.overlapped_layers() == 1


def test_busy_time_is_summed_over_the_layers() -> None:
    assert trace(*computed(0, 1, 2), *computed(1, 3, 3.5)).busy_s(
        "compute", "computed"
    ) == pytest.approx(1.5)


def test_a_move_that_never_ended_lasts_no_time() -> None:
    assert trace(("arrive", 1, 0.5), *computed(0, 0, 1)).intervals("arrive", "arrived") == {
        1: (0.5, 0.5)
    }
