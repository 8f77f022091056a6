"""A streamed answer, from bytes to figures. Sans I/O: bytes and times come in as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dualpath.loadgen.replay.errors import TurnError

MAX_LINE_BYTES = 64 << 20
"""A first chunk may hold the prompt's ids."""
MAX_ANSWER_BYTES = 256 << 20
"""Of a whole stream: many times what the longest answers take."""
_MAX_DETAIL = 300


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    dualpath: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode


class AnswerStream:
    """Takes the body of one streamed completion or chat of one choice.

    `first_s`, `second_s`, `last_s`: times of the first, second and last token, as precise as the server's events are:
    an event without token ids counts as one token."""

    __slots__ = (
        "_nbytes", "_on_first", "_rest", "_tokens", "cached_tokens", "completion_tokens", "done", "explain",
        "finish_reason", "first_s", "last_s", "prompt_tokens", "second_s", "texts", "token_ids",
    )  # fmt: skip

    def __init__(self, on_first: Callable[[float], None] | None = None) -> None:
        """`on_first` is told the time of the first token."""
        self._on_first = on_first
        self._rest = b""
        self._nbytes = 0
        self._tokens = 0
        self.done = False
        self.finish_reason: str | None = None
        self.first_s: float | None = None
        self.second_s: float | None = None
        self.last_s: float | None = None
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens = 0
        self.explain: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what arrived at `now_s`. Raises TurnError."""
        self._nbytes += len(data)
        if self._nbytes > MAX_ANSWER_BYTES:
            raise TurnError("malformed", f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            raise TurnError("malformed", f"an event is longer than {MAX_LINE_BYTES} bytes")
        for line in lines:
            # Comments, names of events and the empty lines between them say nothing here.
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    self.done = True
                else:
                    self._take(payload, now_s)

    def _take(self, payload: bytes, now_s: float) -> None:
        try:
            event = _decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            said = payload[:_MAX_DETAIL].decode(errors="replace")
            raise TurnError("malformed", f"no event of OpenAI's API ({error}): {said}") from error
        if event.error is not None:
            raise TurnError("error-event", said_of(event.error))
        for choice in event.choices:
            self._tokens_of(choice, now_s)
        if (usage := event.usage) is not None:
            self.prompt_tokens = usage.prompt_tokens
            self.completion_tokens = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        if event.dualpath is not None:
            self.explain = event.dualpath

    def _tokens_of(self, choice: _Choice, now_s: float) -> None:
        delta = choice.delta
        text = choice.text or (delta.content if delta is not None else None)
        if text:
            self.texts.append(text)
        count = 0
        if choice.token_ids is not None:
            self.token_ids += choice.token_ids
            count = len(choice.token_ids)
        elif text or (delta is not None and (delta.reasoning_content or delta.tool_calls)):
            count = 1
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            # A token without text, such as the one that ends an answer.
            if not self._tokens and not count:
                count = 1
        if count:
            if not self._tokens:
                self.first_s = now_s
                if self._on_first is not None:
                    self._on_first(now_s)
            if self._tokens < 2 <= self._tokens + count:
                self.second_s = now_s
            self._tokens += count
            self.last_s = now_s

    def generated(self) -> int:
        """Tokens of the answer: as the server counted, else its ids, else its events."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return len(self.token_ids) or self._tokens

    def check_whole(self) -> None:
        """Raises TurnError where the stream ended too early."""
        if not self.done or self.finish_reason is None:
            missing = "[DONE]" if not self.done else "finish_reason"
            raise TurnError(
                "incomplete", f"the stream ended without {missing}, after {self._tokens} tokens"
            )


def said_of(error: Any) -> str:
    """The sentence in an error as OpenAI's API gives it."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:_MAX_DETAIL]
