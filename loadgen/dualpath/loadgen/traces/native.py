"""DualPath's own trace files: a line about the trace, and one per trajectory.

    {"format": "dualpath-trace", "version": 1, "name": "…", "source": "…", "seed": 0, "block_tokens": 512}
    {"name": "64K-0", "seed": 0, "arrival_s": 1.5, "turns": [[5120, 148], [608, 30, 0.5], {"append_tokens": 700, …}]}

A turn is `[append_tokens, generate_tokens]`, with `delay_s` where there is one, or an object of `Turn`'s fields
where it has blocks, messages or an answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dualpath.loadgen.traces.conversations import check_message
from dualpath.loadgen.traces.lines import MAX_TOKENS, Line
from dualpath.loadgen.traces.model import Trace, Trajectory, Turn

FORMAT = "dualpath-trace"
VERSION = 1
_MAX_SEED = (1 << 64) - 1
_MAX_BLOCKS = 1 << 20
_FIELDS = {"append_tokens", "generate_tokens", "delay_s", "blocks", "messages", "answer"}


def save_trace(trace: Trace, path: Path) -> None:
    """Write `path`, whole or not at all. Raises OSError."""
    save_lines(native_lines(trace), path)


def save_lines(lines: Iterable[dict[str, Any]], path: Path) -> None:
    """JSON lines into a file that appears when it is whole; into a pipe or a device as they come. Raises OSError."""
    if path.exists() and not path.is_file():
        # Never renamed over: `-o /dev/null` must not replace the device.
        _write_lines(lines, path)
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        _write_lines(lines, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_lines(lines: Iterable[dict[str, Any]], path: Path) -> None:
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for line in lines:
            file.write(encode(line) + b"\n")


def native_lines(trace: Trace) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "version": VERSION,
        "name": trace.name,
        "source": trace.source,
        "seed": trace.seed,
        "block_tokens": trace.block_tokens,
    }
    for trajectory in trace.trajectories:
        line: dict[str, Any] = {"name": trajectory.name, "seed": trajectory.seed}
        if trajectory.arrival_s is not None:
            line["arrival_s"] = trajectory.arrival_s
        if trajectory.tools:
            line["tools"] = trajectory.tools
        if trajectory.first_round is not None:
            line["first_round"] = trajectory.first_round
        line["turns"] = [_plain(turn) for turn in trajectory.turns]
        yield line


def _plain(turn: Turn) -> object:
    if turn.blocks or turn.messages or turn.answer is not None:
        fields = {name: getattr(turn, name) for name in sorted(_FIELDS)}
        return {name: value for name, value in fields.items() if value not in ((), None)}
    short: list[float] = [turn.append_tokens, turn.generate_tokens]
    return [*short, turn.delay_s] if turn.delay_s else short


def read_native(path: Path, lines: Iterable[Line]) -> Trace:
    """Raises TraceError."""
    rest = iter(lines)
    head = next(rest)
    if head.fields.get("version") != VERSION:
        head.wrong(f"version must be {VERSION}, not {head.fields.get('version')!r}")
    block_tokens = head.integer("block_tokens", 1, MAX_TOKENS)
    read = tuple(_trajectory(line, block_tokens) for line in rest)
    if not read:
        head.wrong("no trajectories follow")
    return Trace(
        head.text("name", path.stem),
        read,
        source=head.text("source", path.name),
        seed=head.integer("seed", 0, _MAX_SEED),
        block_tokens=block_tokens,
    )


def _trajectory(line: Line, block_tokens: int) -> Trajectory:
    turns = line.items(line.fields.get("turns"), "turns")
    arrival, first = line.fields.get("arrival_s"), line.fields.get("first_round")
    tools = line.items(line.fields.get("tools") or [], "tools", low=0)
    if not all(isinstance(tool, dict) for tool in tools):
        line.wrong("tools must be a list of objects")
    read = tuple(_turn(line, turn, block_tokens) for turn in turns)
    try:
        return Trajectory(
            line.text("name", f"line-{line.number}"),
            read,
            line.as_integer(line.fields.get("seed", 0), "seed", 0, _MAX_SEED),
            None if arrival is None else line.seconds(arrival, "arrival_s"),
            tuple(tools),
            None if first is None else line.as_integer(first, "first_round", 0, _MAX_SEED),
        )
    except ValueError as error:
        line.wrong(str(error))


def _turn(line: Line, value: Any, block_tokens: int) -> Turn:
    if isinstance(value, list) and 2 <= len(value) <= 3:
        value = dict(zip(("append_tokens", "generate_tokens", "delay_s"), value, strict=False))
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        line.wrong(
            "a turn must be [append_tokens, generate_tokens], or these and delay_s, "
            f"or an object with {', '.join(sorted(_FIELDS))}"
        )
    appended = line.as_integer(value.get("append_tokens"), "append_tokens", 0, MAX_TOKENS)
    blocks = line.items(value.get("blocks", []), "blocks", low=0, high=_MAX_BLOCKS)
    if blocks and len(blocks) != -(-appended // block_tokens):
        line.wrong(f"{appended} tokens are not {len(blocks)} blocks of {block_tokens}")
    messages = line.items(value.get("messages", []), "messages", low=0)
    answer = value.get("answer")
    for position, message in enumerate([*messages, *([answer] if answer else [])]):
        check_message(line, message, position)
    return Turn(
        appended,
        line.as_integer(value.get("generate_tokens"), "generate_tokens", 1, MAX_TOKENS),
        line.seconds(value.get("delay_s", 0), "delay_s"),
        tuple(line.as_integer(block, "a block", 0, (1 << 63) - 1) for block in blocks),
        tuple(messages),
        answer,
    )
