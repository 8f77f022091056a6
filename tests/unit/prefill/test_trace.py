from __future__ import annotations

from dualpath.prefill.trace import ForwardTrace


def trace_of(marks: list[tuple[str, int, float]]) -> ForwardTrace:
    trace = ForwardTrace()
    trace.marks = marks
    return trace


def test_layers_that_compute_while_others_move_count_as_overlapped() -> None:
    trace = trace_of(
        [
            ("arrive", 0, 0.0),
            ("arrive", 1, 0.0),
            ("arrived", 0, 1.0),
            ("compute", 0, 1.0),
            ("arrived", 1, 1.5),
            ("computed", 0, 2.0),
            ("compute", 1, 2.0),
            ("computed", 1, 3.0),
        ]
    )
    assert trace.overlapped_layers() == 1
    assert trace.busy_s("compute", "computed") == 2.0


def test_a_layers_own_transfer_is_no_overlap() -> None:
    trace = trace_of(
        [("arrive", 0, 0.0), ("compute", 0, 0.5), ("arrived", 0, 0.8), ("computed", 0, 1.0)]
    )
    assert trace.overlapped_layers() == 0
