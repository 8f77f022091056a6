"""Calls of functions, read from a stream of text as they come to be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dualpath.gateway.stops import overlap
from dualpath.gateway.tools import ToolCall, ToolFormat


@dataclass(frozen=True)
class CallDelta:
    """A part of call `number` of an answer: its name, in the first part, or a piece of its arguments. With the `last`
    part it is whole; a call that the answer's end cuts off has none."""

    number: int
    name: str | None = None
    arguments: str = ""
    last: bool = False


Item = str | CallDelta


def joined(deltas: Iterable[CallDelta]) -> list[ToolCall]:
    """The calls that they are parts of."""
    names: list[str] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            names.append(delta.name)
            arguments.append([])
        arguments[delta.number].append(delta.arguments)
    return [ToolCall(name, "".join(parts)) for name, parts in zip(names, arguments, strict=True)]


class _ObjectEnd:
    """Where a JSON object ends whose text comes in any portions."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str, foreign: str) -> int | None:
        """The end within this portion, which comes before the character `foreign`, too, where that is in no string:
        such text is no JSON any more. None: not in this portion."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
            elif char == foreign:
                return at
        return None


class ToolParser:
    """Feed text in any portions; `push` and `finish` return what is certain: text to be shown, and parts of calls.
    Blanks around calls are nobody's. A call has begun where its name and the brace of its arguments are there; its
    arguments are the model's text as it is. Where the name comes later, the call comes whole, as soon as it is read.
    What looks like a call and has not begun is text."""

    def __init__(self, form: ToolFormat, *, one: bool = False) -> None:
        """With `one`, `over` is set after a call, and whatever follows is ignored."""
        self._form, self._one = form, one
        self._held = ""
        self._mark: str | None = None
        """With what the calls that are being read were opened."""
        self._blanks = ""
        """Before the mark."""
        self._arguments: _ObjectEnd | None = None
        """Of the call whose arguments are being read."""
        self._here = 0
        """Calls since the mark."""
        self._begun = self._called = False
        self._calls = 0
        self.over = False

    def push(self, text: str) -> list[Item]:
        items: list[Item] = []
        self._held += text
        while not self.over and self._step(items):
            pass
        return [item for item in items if item]

    def finish(self) -> list[Item]:
        """The answer has ended."""
        items: list[Item] = []
        if self.over or self._arguments is not None:
            return items
        if self._mark is not None:
            self._close(items, self._held, "")
        elif not self._called or self._held.strip():
            items.append(self._held)
        self._held = ""
        return [item for item in items if item]

    def _step(self, items: list[Item]) -> bool:
        """Take what is certain of what is held; False where nothing is any more."""
        if self._arguments is not None:
            return self._read_arguments(items, self._arguments)
        if self._mark is not None:
            return self._read_calls(items)
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
            self._begun, self._mark, self._blanks = True, opening, text[len(shown) : cut]
        return found

    def _read_calls(self, items: list[Item]) -> bool:
        """The beginning of a call, or the mark that closes them, whichever comes first."""
        form, text = self._form, self._held
        end = text.find(form.closing) if form.closing and self._mark else -1
        begin = (form.another if self._here else form.first).match(text)
        if begin is not None and not 0 <= end < begin.end():
            if self._here and self._one:
                self.over = True
                return False
            items.append(CallDelta(self._calls, begin["name"].strip()))
            self._here += 1
            self._held, self._arguments = text[begin.end() :], _ObjectEnd()
            return True
        if end < 0:
            return False
        self._held = text[end + len(form.closing) :]
        self._close(items, text[:end], form.closing)
        return True

    def _read_arguments(self, items: list[Item], arguments: _ObjectEnd) -> bool:
        text, closing = self._held, self._form.closing
        end = arguments.find(text, closing[:1] if self._mark else "")
        self._held = "" if end is None else text[end:]
        if text or end is not None:
            items.append(CallDelta(self._calls, None, text[:end], last=end is not None))
        if end is None:
            return False
        self._arguments = None
        self._calls += 1
        return True

    def _close(self, items: list[Item], body: str, closing: str) -> None:
        """Where calls end; `body` is what is held of them."""
        mark, self._mark = f"{self._blanks}{self._mark or ''}", None
        self._blanks = ""
        here, self._here = self._here, 0
        if here:
            rest = self._form.rest.match(body)
            text = body[rest.end() :] if rest is not None else body
        else:
            read = list(self._whole(body))
            items += read
            text = "" if read else f"{mark}{body}{closing}"
        if text:
            items.append(text)
        self._called = not text
        self.over = self._one and self._calls > 0

    def _whole(self, body: str) -> Iterator[CallDelta]:
        for call in (self._form.read(body) or [])[: 1 if self._one else None]:
            yield CallDelta(self._calls, call.name)
            yield CallDelta(self._calls, None, call.arguments, last=True)
            self._calls += 1
