"""Calls of functions in what a model says: how each family writes them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """`arguments` are JSON text, as the client gets them."""

    name: str
    arguments: str


Read = Callable[[str], list[ToolCall] | None]
"""The calls in the text between two marks; None where it is none."""


@dataclass(frozen=True)
class ToolFormat:
    """A call is written between `opening` and `closing`; without `closing`, up to the answer's end. `bare`: an answer
    that begins with a brace is a call, too. `sign` is by what a chat template tells its format; `marks` are all texts
    that may be special tokens, which have no text of their own else. `key` is where a JSON call has its arguments.

    `first` and `another` match the text from the mark, or from the arguments of the call before, to the brace with
    which a call's arguments begin (group `name`); `rest` what may stand behind the last one's. They never look back:
    blanks without end cost no more than once."""

    sign: str
    opening: str
    closing: str
    read: Read
    first: re.Pattern[str]
    another: re.Pattern[str]
    rest: re.Pattern[str]
    marks: tuple[str, ...] = ()
    bare: bool = False
    key: str = ""


# ── what families write ────────────────────────────────────────────────────────────────────────────
def _json_calls(key: str) -> Read:
    def read(text: str) -> list[ToolCall] | None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        calls = [_call_of(item, key) for item in (found if isinstance(found, list) else [found])]
        known = [call for call in calls if call is not None]
        return known if known and len(known) == len(calls) else None

    return read


def _call_of(found: Any, key: str) -> ToolCall | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get(key, {})
    if isinstance(arguments, dict):
        return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))
    return None


_END = r'(?:\s*+,\s*+"[^"\\]*+"\s*+:\s*+(?:"[^"\\]*+"|[\w.+-]++))*+\s*+\}'
"""Of a JSON call, behind its arguments: some models add an `id`."""


def _json_patterns(key: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    call = rf'\{{\s*+"name"\s*+:\s*+"(?P<name>[^"\\]++)"\s*+,\s*+"{key}"\s*+:\s*+(?=\{{)'
    first, another = rf"\s*+\[?+\s*+{call}", rf"{_END}\s*+[,;]?+\s*+{call}"
    return re.compile(first), re.compile(another), re.compile(rf"(?:{_END})?+\s*+\]?+\s*+")


def _deepseek_patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    call = r"\s*+<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]++)\n```json\n\s*+(?=\{)"
    end = r"\s*+```(?:\s*+<｜tool▁call▁end｜>)?+"
    return re.compile(call), re.compile(end + call), re.compile(rf"(?:{end})?+\s*+")


_DEEPSEEK_CALL = re.compile(
    r"\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n(?P<arguments>.*?)\n```"
    r"(?:<｜tool▁call▁end｜>|$)",
    re.DOTALL,
)


def _deepseek_calls(text: str) -> list[ToolCall] | None:
    calls, at = [], 0
    while match := _DEEPSEEK_CALL.match(text, at):
        calls.append(ToolCall(match["name"].strip(), match["arguments"]))
        at = match.end()
    return calls if calls and not text[at:].strip() else None


DEEPSEEK = ToolFormat(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    _deepseek_calls,
    *_deepseek_patterns(),
    (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
)
"""DeepSeek-V3."""
HERMES = ToolFormat(
    "<tool_call>",
    "<tool_call>",
    "</tool_call>",
    _json_calls("arguments"),
    *_json_patterns("arguments"),
    ("<tool_call>", "</tool_call>"),
    key="arguments",
)
"""Qwen2, Qwen3, Qwen3-MoE, and models that were taught the Hermes format."""
MISTRAL = ToolFormat(
    "[TOOL_CALLS]",
    "[TOOL_CALLS]",
    "",
    _json_calls("arguments"),
    *_json_patterns("arguments"),
    ("[TOOL_CALLS]",),
)
"""Mixtral."""
LLAMA = ToolFormat(
    '"parameters"',
    "<|python_tag|>",
    "",
    _json_calls("parameters"),
    *_json_patterns("parameters"),
    ("<|python_tag|>",),
    bare=True,
    key="parameters",
)
"""Llama 3.1 and later."""
FORMATS = (DEEPSEEK, HERMES, MISTRAL, LLAMA)


def format_of(template: str) -> ToolFormat | None:
    """How the model with this chat template calls functions; None: it does not."""
    if "tools" not in template:
        return None
    return next((form for form in FORMATS if form.sign in template), None)
