from __future__ import annotations

import io
import json
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dualpath.cluster.output import MAX_LINE_BYTES, Console, Lines, LogFile


@given(st.lists(st.binary(max_size=20)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    lines, at_once = Lines(), Lines()
    in_pieces = [line for piece in pieces for line in lines.feed(piece)] + lines.end()
    assert in_pieces == at_once.feed(whole) + at_once.end()


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"))))
def test_lines_come_out_as_they_were_printed(texts: list[str]) -> None:
    lines = Lines()
    assert lines.feed("".join(text + "\n" for text in texts).encode()) == texts
    assert lines.end() == []


def test_an_endless_line_is_broken() -> None:
    lines = Lines()
    assert [len(line) for line in lines.feed(b"x" * (2 * MAX_LINE_BYTES + 1))] == [
        MAX_LINE_BYTES,
        MAX_LINE_BYTES,
    ]
    assert lines.end() == ["x"]


def test_a_log_is_begun_anew_at_each_start_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for text in ("first", "second"):
        log = LogFile(path, 1000)
        log.write(text)
        log.close()
    assert path.read_text() == "second\n"
    assert (tmp_path / "x.log.1").read_text() == "first\n"


def test_a_log_never_grows_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = LogFile(path, 100)
    for number in range(1000):
        log.write(f"line {number}")
        assert path.stat().st_size <= 100
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.log", "x.log.1"]
    assert path.read_text().endswith("line 999\n")


def test_a_line_that_cannot_be_written_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", 100)
    log.write("taken")
    log.close()
    log.write("too late")
    assert log.lost == 1
    assert (tmp_path / "x.log").read_text() == "taken\n"


def test_a_log_that_could_not_be_begun_anew_is_written_again_once_it_can(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", 10)
    log.write("12345")
    in_the_way = tmp_path / "x.log.1"
    in_the_way.mkdir()
    log.write("67890")
    assert log.lost == 1
    in_the_way.rmdir()
    log.write("again")
    log.close()
    assert log.lost == 1
    assert (tmp_path / "x.log").read_text() == "again\n"


def test_each_line_has_its_process_s_name() -> None:
    stream = io.StringIO()
    console = Console(["nats", "prefill-0"], stream=stream)
    console.line("nats", "hello")
    console.line("prefill-0", "hi")
    console.say("all is well")
    console.close()
    assert stream.getvalue() == "nats      │ hello\nprefill-0 │ hi\nall is well\n"


def test_with_json_every_line_is_an_object() -> None:
    stream = io.StringIO()
    console = Console(["nats"], json_lines=True, stream=stream)
    console.line("nats", "plain")
    console.line("gateway-0", '{"event": "ready"}')
    console.alarm("something\nhappened")
    console.close()
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"service": "nats", "event": "plain"},
        {"event": "ready"},
        {"service": "supervisor", "event": "something\nhappened"},
    ]


def test_a_quiet_console_shows_the_supervisor_s_words_only() -> None:
    stream = io.StringIO()
    console = Console(["nats"], stream=stream)
    console.line("nats", "before")
    console.quiet()
    assert stream.getvalue() == "nats │ before\n"
    console.line("nats", "after")
    console.say("said")
    console.close()
    assert stream.getvalue() == "nats │ before\nsaid\n"


class _Stuck(io.StringIO):
    """A terminal that takes nothing until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait(30)
        return super().write(text)


def test_a_terminal_that_takes_nothing_holds_nobody_up() -> None:
    stream = _Stuck()
    console = Console(["a"], stream=stream)
    for number in range(30_000):
        console.line("a", str(number))
    stream.go.set()
    console.say("end")
    console.close()
    text = stream.getvalue()
    assert text.startswith("a │ 0\n")
    assert "lines were not shown; they are in the log files" in text


class _Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_terminal_that_is_gone_is_no_error() -> None:
    console = Console(["a"], stream=_Gone())
    for _ in range(10):
        console.line("a", "x")
    console.close()
