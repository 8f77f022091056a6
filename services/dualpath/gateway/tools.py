"""Calls of functions in what a model says: how each family writes them, and how they are read from a stream. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dualpath.gateway.stops import overlap


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
    that may be special tokens, which have no text of their own else. `key` is where a JSON call has its arguments."""

    sign: str
    opening: str
    closing: str
    read: Read
    marks: tuple[str, ...] = ()
    bare: bool = False
    key: str = ""


class ToolParser:
    """Feed text in any portions; `push` and `finish` return what is certain: text to be shown, and calls. Blanks
    around calls are nobody's. What looks like a call and is none is text."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._held = ""
        self._mark: str | None = None
        """With what the call that is being read was opened."""
        self._begun = self._called = False

    def push(self, text: str) -> list[str | ToolCall]:
        items: list[str | ToolCall] = []
        self._held += text
        while self._step(items):
            pass
        return [item for item in items if item]

    def finish(self) -> list[str | ToolCall]:
        """The answer has ended."""
        held, self._held = self._held, ""
        if self._mark is not None:
            return self._call(held, "")
        return [] if self._called and not held.strip() else [held] if held else []

    def _step(self, items: list[str | ToolCall]) -> bool:
        """Take what is certain of what is held; False where nothing is any more."""
        if self._mark is not None:
            return self._read_call(items)
        if self._called:
            self._held = self._held.lstrip()
        if not self._begun and self._form.bare and self._held.lstrip().startswith("{"):
            self._begun, self._mark = True, ""
            return True
        opening, text = self._form.opening, self._held
        at = text.find(opening)
        found = at >= 0
        cut = at if found else len(text) - overlap(text, opening)
        shown = text[:cut].rstrip()
        self._begun = self._begun or bool(shown)
        if shown:
            self._called = False
        items.append(shown)
        self._held = text[cut + len(opening) :] if found else text[len(shown) :]
        if found:
            self._begun, self._mark = True, opening
        return found

    def _read_call(self, items: list[str | ToolCall]) -> bool:
        closing = self._form.closing
        end = self._held.find(closing) if closing and self._mark else -1
        if end < 0:
            return False
        body, self._held = self._held[:end], self._held[end + len(closing) :]
        items += self._call(body, closing)
        return True

    def _call(self, body: str, closing: str) -> list[str | ToolCall]:
        mark, self._mark = self._mark or "", None
        calls = self._form.read(body)
        if calls is None:
            return [f"{mark}{body}{closing}"]
        self._called = True
        return list(calls)


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
    ("<tool_call>", "</tool_call>"),
    key="arguments",
)
"""Qwen2, Qwen3, Qwen3-MoE, and models that were taught the Hermes format."""
MISTRAL = ToolFormat(
    "[TOOL_CALLS]", "[TOOL_CALLS]", "", _json_calls("arguments"), ("[TOOL_CALLS]",)
)
"""Mixtral."""
LLAMA = ToolFormat(
    '"parameters"',
    "<|python_tag|>",
    "",
    _json_calls("parameters"),
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
