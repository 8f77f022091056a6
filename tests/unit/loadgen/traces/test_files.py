"""Trace files of three formats: read, written, and where something is wrong, by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dualpath.loadgen.traces import (
    Trace,
    TraceError,
    Trajectory,
    Turn,
    describe,
    load_trace,
    make_trace,
    save_trace,
)
from dualpath.loadgen.traces.mooncake import mooncake_lines
from dualpath.loadgen.traces.native import save_lines


def request(timestamp: int, length: int, ids: list[int], output: int = 5) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": length,
        "output_length": output,
        "hash_ids": ids,
    }


MOONCAKE = [
    request(0, 1000, [0, 1]),
    request(3000, 1500, [0, 1, 2], 7),
    request(1500, 600, [0, 3]),
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


# ── Mooncake's ─────────────────────────────────────────────────────────────────────────────────────
def test_mooncakes_requests_arrive_in_order_and_hit_the_blocks_before(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "m.jsonl", MOONCAKE))
    assert [t.arrival_s for t in trace.trajectories] == [0.0, 1.5, 3.0]
    assert trace.trajectories[2].turns == (Turn(1500, 7, blocks=(0, 1, 2)),)
    stats = describe(trace)
    assert stats.span_s == 3.0
    # Block 0 is hit by the second request, 0 and 1 by the third; of 7 blocks.
    assert stats.ideal_block_hit_rate == pytest.approx(3 / 7)
    assert stats.ideal_hit_rate == pytest.approx((512 + 1024) / 3100)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (request(0, 1000, [1]), "has 2 blocks of 512 tokens, but there are 1 hash_ids"),
        (request(-1, 1000, [1, 2]), "timestamp must be a whole number from 0"),
        (request(0, 0, [1]), "input_length must be a whole number from 1"),
        (request(0, 1000, [1, -2]), "a hash id must be"),
        (request(0, 1000, [1, 2], 0), "output_length must be"),
        ({**request(0, 5, [1]), "input_length": True}, "not True"),
        ({**request(0, 5, [1]), "hash_ids": 3}, "hash_ids must be a list"),
        ([1], "must be a JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = write(tmp_path / "m.jsonl", [MOONCAKE[0], line])
    with pytest.raises(TraceError, match=f"m.jsonl, line 2: .*{said}"):
        load_trace(path)


def test_a_made_trace_becomes_mooncakes_with_each_turns_context_shared(tmp_path: Path) -> None:
    trace = Trace(
        "t",
        (Trajectory("a", (Turn(1000, 100), Turn(10, 5, 2.0))), Trajectory("b", (Turn(600, 1),))),
    )
    path = tmp_path / "m.jsonl"
    save_lines(mooncake_lines(trace, answer_s=1.0), path)
    read = load_trace(path)
    assert [t.arrival_s for t in read.trajectories] == [0.0, 0.0, 3.0]
    first, other, later = (t.turns[0] for t in read.trajectories)
    assert (first.append_tokens, later.append_tokens) == (1000, 1110)
    assert later.blocks[0] == first.blocks[0]
    assert not set(later.blocks[1:]) & set(first.blocks)
    assert not set(other.blocks) & {*first.blocks, *later.blocks}


def test_mooncakes_format_survives_a_round_trip(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "m.jsonl", MOONCAKE))
    save_lines(mooncake_lines(trace), tmp_path / "n.jsonl")
    again = load_trace(tmp_path / "n.jsonl")
    assert [t.turns for t in again.trajectories] != []
    assert describe(again).ideal_block_hit_rate == describe(trace).ideal_block_hit_rate


# ── conversations ──────────────────────────────────────────────────────────────────────────────────
def said(role: str, content: str | None = "some text", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_conversations_turns_end_where_the_assistant_speaks(tmp_path: Path) -> None:
    messages = [
        said("system"), said("user"), said("assistant", None, tool_calls=CALL),
        said("tool", "x" * 400, tool_call_id="c"), said("assistant", "y" * 80), said("user"),
    ]  # fmt: skip
    line = {
        "messages": messages, "id": "one", "delays_s": [0, 1.5, 2], "arrival_s": 3,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }  # fmt: skip
    (trajectory,) = load_trace(write(tmp_path / "c.jsonl", [line])).trajectories
    assert (trajectory.name, trajectory.arrival_s, len(trajectory.tools)) == ("one", 3.0, 1)
    assert [len(turn.messages) for turn in trajectory.turns] == [2, 1, 1]
    assert [turn.delay_s for turn in trajectory.turns] == [0, 1.5, 2]
    assert trajectory.turns[0].answer == messages[2]
    assert trajectory.turns[1].generate_tokens == 20
    assert trajectory.turns[1].append_tokens == 100
    assert trajectory.turns[2].answer is None


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ({"messages": []}, "messages must be a list of 1"),
        (
            {"messages": [said("assistant")]},
            r"messages\[0\]: an assistant's message answers nothing",
        ),
        ({"messages": [said("robot")]}, r"messages\[0\].role"),
        ({"messages": [said("user", None)]}, r"messages\[0\] needs content"),
        ({"messages": [said("user")], "delays_s": [1, 2]}, "2 numbers, but the conversation has 1"),
        ({"messages": [said("user")], "delays_s": [-1]}, "delays_s must be seconds"),
        ({"messages": [said("user")], "generate_tokens": [0]}, "generate_tokens must be"),
        ({"messages": [said("user")], "tools": [1]}, "tools must be a list of objects"),
    ],
)
def test_a_wrong_conversation_is_named(tmp_path: Path, line: Any, wrong: str) -> None:
    path = write(tmp_path / "c.jsonl", [{"messages": [said("user")]}, line])
    with pytest.raises(TraceError, match=f"line 2: .*{wrong}"):
        load_trace(path)


# ── DualPath's own ─────────────────────────────────────────────────────────────────────────────────
def test_own_files_keep_everything(tmp_path: Path) -> None:
    made = make_trace("32K", trajectories=3, lengths=0.05, turns=0.1, seed=4)
    turns = (
        Turn(513, 2, 0.5, blocks=(1, 2)),
        Turn(4, 1, messages=(said("user"),), answer=said("assistant")),
    )
    odd = Trajectory("odd", turns, seed=8, arrival_s=2.5, tools=({"type": "function"},))
    trace = Trace("mix", (*made.agents(5), odd), source="a test", seed=4)
    save_trace(trace, tmp_path / "t.jsonl")
    assert load_trace(tmp_path / "t.jsonl") == trace
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize(
    ("turns", "wrong"),
    [
        ([], "turns must be a list of 1"),
        ([[1]], "a turn must be"),
        ([[1, 2, 3, 4]], "a turn must be"),
        ([[1, 0]], "generate_tokens must be"),
        ([[0, 1]], "appends nothing"),
        ([{"append_tokens": 1, "generate_tokens": 1, "colour": 1}], "a turn must be"),
        ([{"append_tokens": 600, "generate_tokens": 1, "blocks": [1]}], "are not 1 blocks"),
    ],
)
def test_a_wrong_trajectory_is_named(tmp_path: Path, turns: Any, wrong: str) -> None:
    head = {"format": "dualpath-trace", "version": 1, "seed": 0, "block_tokens": 512}
    path = write(tmp_path / "t.jsonl", [head, {"turns": turns}])
    with pytest.raises(TraceError, match=f"line 2: .*{wrong}"):
        load_trace(path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is empty"),
        ("{", "line 1: is no JSON"),
        ('{"a": 1}', "line 1: is of no known format"),
        ('{"format": "dualpath-trace", "version": 9}', "version must be 1, not 9"),
        ('{"format": "dualpath-trace", "version": 1, "seed": 0, "block_tokens": 1}', "no traject"),
        ("[" * 100_000, "line 1: is no JSON"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(TraceError, match=wrong):
        load_trace(tmp_path / "t.jsonl")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load_trace(tmp_path / "none.jsonl")
