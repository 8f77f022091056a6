"""JSON lines, bounded: what is read for a trace fits in memory, and what is wrong has a line number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from dualpath.loadgen.traces.errors import TraceError

MAX_LINE_BYTES = 64 << 20
MAX_LINES = 2_000_000
MAX_TOKENS = 1 << 30
"""Of a turn."""
MAX_TURNS = 100_000
"""Of a trajectory."""
MAX_TEXT = 1000
MAX_SECONDS = 1e9

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Line:
    """A JSON object of a file, which checks its own fields."""

    path: Path
    number: int
    fields: dict[str, Any]

    def wrong(self, what: str) -> NoReturn:
        raise TraceError(f"{self.path}, line {self.number}: {what}")

    def integer(self, name: str, low: int, high: int) -> int:
        return self.as_integer(self.fields.get(name), name, low, high)

    def as_integer(self, value: Any, name: str, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            self.wrong(f"{name} must be a whole number from {low} to {high}, not {_short(value)}")
        return value

    def seconds(self, value: Any, name: str) -> float:
        if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS:
            self.wrong(f"{name} must be seconds from 0 to {MAX_SECONDS:g}, not {_short(value)}")
        assert math.isfinite(value)
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            self.wrong(f"{name} must be text of up to {MAX_TEXT} characters, not {_short(value)}")
        return value

    def items(self, value: Any, name: str, *, low: int = 1, high: int = MAX_TURNS) -> list[Any]:
        if not isinstance(value, list) or not low <= len(value) <= high:
            self.wrong(f"{name} must be a list of {low} to {high} items, not {_short(value)}")
        return value


def read_lines(path: Path) -> Iterator[Line]:
    """The file's lines that are not blank. Raises TraceError, and for files that cannot be read too."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise TraceError(
                        f"{path}, line {number}: is longer than {MAX_LINE_BYTES} bytes"
                    )
                if number > MAX_LINES:
                    raise TraceError(f"{path}: has more than {MAX_LINES} lines")
                if line.strip():
                    yield Line(path, number, _object(path, number, line))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = _decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{path}, line {number}: is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise TraceError(f"{path}, line {number}: must be a JSON object, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
