"""Recorded conversations: one per line, in OpenAI's form.

    {"messages": [{"role": "system", …}, {"role": "user", …}, {"role": "assistant", …}, {"role": "tool", …}, …],
     "tools": […], "id": "…", "arrival_s": 0.0, "delays_s": [0, 1.5, …], "generate_tokens": [120, 80, …]}

Only `messages` is needed. Each assistant's message ends a turn: what stands before it is the turn's prompt, and it is
what was answered. A conversation that ends with another role has one turn more. `delays_s` and `generate_tokens` have
one number per turn; without the latter an answer is as long as what was recorded, at 4 characters a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dualpath.loadgen.traces.lines import MAX_TOKENS, Line
from dualpath.loadgen.traces.model import Message, Trace, Trajectory, Turn

CHARACTERS_PER_TOKEN = 4
DEFAULT_GENERATE_TOKENS = 128
"""Of an answer that was not recorded."""

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_TOOLS = 1024


def read_conversations(path: Path, lines: Iterable[Line]) -> Trace:
    """In the file's order; where all have a time, in the order of arrival. Raises TraceError."""
    read = [_trajectory(line, number) for number, line in enumerate(lines)]
    if all(trajectory.arrival_s is not None for trajectory in read):
        read.sort(key=lambda trajectory: trajectory.arrival_s or 0.0)
    return Trace(path.stem, tuple(read), source=f"recorded conversations: {path.name}")


def _trajectory(line: Line, number: int) -> Trajectory:
    messages = line.items(line.fields.get("messages"), "messages")
    groups: list[tuple[list[Message], Message | None]] = []
    asked: list[Message] = []
    for position, message in enumerate(messages):
        check_message(line, message, position)
        if message["role"] != "assistant":
            asked.append(message)
            continue
        if not asked:
            line.wrong(f"messages[{position}]: an assistant's message answers nothing")
        groups.append((asked, message))
        asked = []
    if asked:
        groups.append((asked, None))
    delays = _numbers(line, "delays_s", len(groups))
    lengths = _numbers(line, "generate_tokens", len(groups))
    tools = line.items(line.fields.get("tools") or [], "tools", low=0, high=_MAX_TOOLS)
    if not all(isinstance(tool, dict) for tool in tools):
        line.wrong("tools must be a list of objects")
    offered = estimate(tools) if tools else 0
    turns = tuple(
        Turn(
            sum(map(estimate, group)) + (offered if index == 0 else 0),
            line.as_integer(lengths[index], "generate_tokens", 1, MAX_TOKENS)
            if lengths
            else (estimate(answer) if answer else DEFAULT_GENERATE_TOKENS),
            line.seconds(delays[index], "delays_s") if delays else 0.0,
            messages=tuple(group),
            answer=answer,
        )
        for index, (group, answer) in enumerate(groups)
    )
    arrival = line.fields.get("arrival_s")
    return Trajectory(
        line.text("id", f"line-{line.number}"),
        turns,
        seed=number,
        arrival_s=None if arrival is None else line.seconds(arrival, "arrival_s"),
        tools=tuple(tools),
    )


def check_message(line: Line, message: Any, position: int) -> None:
    where = f"messages[{position}]"
    if not isinstance(message, dict):
        line.wrong(f"{where} must be an object")
    if message.get("role") not in _ROLES:
        line.wrong(f"{where}.role must be one of {', '.join(_ROLES)}")
    if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
        line.wrong(f"{where} needs content: text, or a list of parts")


def _numbers(line: Line, name: str, count: int) -> list[Any]:
    value = line.fields.get(name)
    if value is None:
        return []
    numbers = line.items(value, name, low=0)
    if len(numbers) != count:
        line.wrong(f"{name} has {len(numbers)} numbers, but the conversation has {count} turns")
    return numbers


def estimate(value: Any) -> int:
    """Tokens of a message, roughly: its text at CHARACTERS_PER_TOKEN, at least one."""
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        text = value["content"]
        calls = value.get("tool_calls")
        length = len(text) + (len(msgspec.json.encode(calls)) if calls else 0)
    else:
        length = len(msgspec.json.encode(value))
    return max(round(length / CHARACTERS_PER_TOKEN), 1)
