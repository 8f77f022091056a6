"""`dualpath trace`: makes, describes and converts files, and says what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dualpath.cli.trace import Change, convert, make, stat
from dualpath.loadgen.traces import load_trace


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.jsonl"
    assert make(path, "64K", 20, 3, 0.05, 0.05) == 0
    return path


def test_a_made_trace_is_shown_beside_table_2(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert stat(made, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "20 trajectories" in shown
    assert "Table 2" in shown
    (turns,) = [line.split() for line in shown.splitlines() if line.strip().startswith("turns")]
    assert turns[2] == "7.85"
    assert "ideal hit rate" in shown


def test_programs_get_everything_as_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert stat(made, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trajectories"] == 20
    assert found["table_2"]["append"] == pytest.approx(429)
    assert found["append"]["percentiles"]["50"] > 0


def test_a_trace_is_shortened_and_written_in_both_formats(made: Path, tmp_path: Path) -> None:
    change = Change(first=5, turns=0.5, max_tokens=2000)
    assert convert(made, tmp_path / "own.jsonl", "native", change, 0.0) == 0
    own = load_trace(tmp_path / "own.jsonl")
    assert len(own) == 5
    assert convert(made, tmp_path / "theirs.jsonl", "mooncake", change, 2.0) == 0
    theirs = load_trace(tmp_path / "theirs.jsonl")
    assert len(theirs) == own.turns
    assert theirs.timed


def test_what_is_wrong_is_said(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = made.with_name("broken.jsonl")
    broken.write_text('{"hash_ids": [1], "timestamp": 0, "input_length": 5}\n')
    assert stat(broken, as_json=False) == 1
    assert "broken.jsonl, line 1: output_length must be" in capsys.readouterr().err
    assert make(made.parent / "none" / "x", "64K", 1, 0, 0.05, 0.05) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert make(made, "16K", 1, 0, 1, 1) == 2
    assert convert(made, broken, "csv", Change(), 0.0) == 2
    assert convert(made, broken, "native", Change(append=0), 0.0) == 2
    assert convert(made, broken, "native", Change(max_tokens=2), 0.0) == 2


def test_what_is_no_file_is_written_into_and_never_replaced(tmp_path: Path) -> None:
    """As `-o /dev/null` and `-o /dev/stdout` are; here a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert make(pipe, "64K", 1, 0, 0.05, 0.05) == 0
        assert os.read(reader, 30).startswith(b'{"format":"dualpath-trace"')
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
