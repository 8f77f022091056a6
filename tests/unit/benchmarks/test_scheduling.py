"""What the scheduler's benchmarks make of what they have seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from benchmarks import compute_bound
from benchmarks.attention_balance import ATTENTION_S, Row, by_step, rows
from benchmarks.joining import Streamed, joined, leavers
from benchmarks.ratios import interval


def test_the_interval_of_pairs_is_students() -> None:
    # Logarithms −0.1, 0, 0.1: their mean is 0, their deviation 0.1, and t of two degrees of freedom 4.30.
    found = interval([math.exp(-0.1), 1.0, math.exp(0.1)])
    assert found.mean == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(4.30 * 0.1 / math.sqrt(3)))
    assert found.low == pytest.approx(1 / found.high)


@pytest.mark.parametrize("ratios", [[], [1.0], [1.0, 0.0]])
def test_too_little_for_an_interval_is_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="two ratios or more"):
        interval(ratios)


def test_rates_count_from_the_first_answer_to_the_last() -> None:
    answers = [compute_bound.Answer(at, 100, 0.5) for at in (13.0, 10.0, 10.01, 11.0)]
    assert compute_bound.rates(answers) == pytest.approx((200 / 3, 1 / 3))
    with pytest.raises(ValueError, match="tell no rate"):
        compute_bound.rates(answers[:1])


def test_attention_is_summed_by_engine_over_whole_forwards_of_the_window() -> None:
    logged = [
        {
            "event": "forward",
            "step": step,
            "engine": engine,
            "cached": 10,
            "new": new,
            "ts": f"{at}Z",
        }
        for step, engine, new, at in (
            (1, 0, 1, "2026-12-01T00:00:00.5"),  # begun before the window
            (2, 0, 1, "2026-12-01T00:00:01.5"),
            (3, 0, 1, "2026-12-01T00:00:02.5"),
            (3, 0, 2, "2026-12-01T00:00:02.5"),
            (3, 1, 3, "2026-12-01T00:00:02.6"),
            (4, 0, 1, "2026-12-01T00:00:03.9"),
            (4, 1, 1, "2026-12-01T00:00:04.1"),  # ended after it
        )
    ]
    found = rows([{"event": "registered"}, *logged])
    assert found[0] == Row(1, 0, 10, 1, found[0].at)
    began = found[0].at + 0.5
    assert by_step(found, began, began + 3.0, 3) == [
        [pytest.approx(ATTENTION_S * (11 + 23)), pytest.approx(ATTENTION_S * 36), 0.0]
    ]


def test_a_node_joined_when_it_was_given_something_and_when_a_token_of_it_came() -> None:
    decisions: list[dict[str, Any]] = [
        {"kind": "decode", "engine": ["decode-1", 0], "at": 5.0},
        {"kind": "prefill", "engine": ["prefill-1", 0], "at": 7.0},
        {"kind": "prefill", "engine": ["prefill-1", 0], "at": 6.0},
        {"kind": "prefix", "engine": None, "at": 1.0},
    ]
    nodes = {"prefill_node": "prefill-1", "decode_node": "decode-0"}
    answers = [Streamed([1], [2, 3], [8.0, 9.0], nodes)]
    prefill = joined("prefill-1", 5.5, decisions, answers)
    assert (prefill.assigned, prefill.first_token, prefill.in_time) == (6.0, 8.0, True)
    decode = joined("decode-1", 3.9, decisions, answers)
    assert (decode.assigned, decode.first_token, decode.in_time) == (5.0, None, False)
    assert "never" in str(decode)
    assert joined("decode-0", 0.0, [], answers).first_token == 9.0


def test_nodes_that_left_are_told_from_what_scale_waits_for() -> None:
    said = "prefill nodes: from 2 to 1 …\nprefill-1 has left\n\n"
    assert leavers(said, "prefill") == ["prefill-1"]
    assert leavers(said, "decode") == []
