"""An agent's growing context, kept as the bytes that its next request needs: a turn costs what it adds. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec

from dualpath.loadgen.replay.options import Target
from dualpath.loadgen.replay.stream import AnswerStream
from dualpath.loadgen.traces.content import turn_ids, turn_words
from dualpath.loadgen.traces.model import Trace, Trajectory, Turn

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Dialect:
    """How requests to a target look; found out by `probe`. `prompts`: ids, text or chat; `words_per_token` of text in
    place of token ids."""

    prompts: str
    model: str
    vocab: tuple[int, int]
    words_per_token: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "model": self.model, "vocab": list(self.vocab),
                "words_per_token": self.words_per_token}  # fmt: skip


class Context(ABC):
    """One agent's. Call `request` for turn 0, 1, …, and `answered` between them."""

    path = ""
    opening, closing = b"", b""
    exact_prompt = False
    """Is the prompt's length in tokens known?"""

    def __init__(
        self, trace: Trace, trajectory: Trajectory, target: Target, dialect: Dialect, agent: int
    ) -> None:
        self._trace, self._trajectory, self._dialect = trace, trajectory, dialect
        self._exact = target.exact
        self._grown = bytearray()
        self.tokens = 0
        """Of the context so far, as the trace says; measured where the server counts."""
        fields: dict[str, Any] = {
            "model": dialect.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **target.extra,
            **self._fields(),
        }
        if target.seeded:
            fields["seed"] = agent
        self._common = _encode(fields)[1:-1]

    def request(self, turn: int) -> bytes:
        """The body of a turn's request."""
        what = self._trajectory.turns[turn]
        self._grow(self._appended(turn))
        self.tokens += what.append_tokens
        count = what.generate_tokens
        length = b',"max_tokens":%d' % count
        if self._exact:
            length += b',"min_tokens":%d,"ignore_eos":true' % count
        return b"".join(
            (b"{", self._common, length, self.opening, bytes(self._grown), self.closing, b"}")
        )

    def answered(self, turn: int, answer: AnswerStream) -> None:
        """Take the answer into the context."""
        self._grow(self._said(self._trajectory.turns[turn], answer))
        self.tokens += answer.generated()

    def _grow(self, more: bytes) -> None:
        if self._grown and more:
            self._grown += b","
        self._grown += more

    def _fields(self) -> dict[str, Any]:
        return {}

    @abstractmethod
    def _appended(self, turn: int) -> bytes: ...

    @abstractmethod
    def _said(self, turn: Turn, answer: AnswerStream) -> bytes: ...


class IdsContext(Context):
    path = "/completions"
    opening, closing = b',"prompt":[', b"]"
    exact_prompt = True

    def _fields(self) -> dict[str, Any]:
        return {"return_token_ids": True}

    def _appended(self, turn: int) -> bytes:
        ids = turn_ids(self._trace, self._trajectory, turn, self._dialect.vocab)
        return _encode(ids.tolist())[1:-1]

    def _said(self, turn: Turn, answer: AnswerStream) -> bytes:
        return _encode(answer.token_ids)[1:-1]


class TextContext(Context):
    """Words stand between a turn's spaces; the answer follows as it is."""

    path = "/completions"
    opening, closing = b',"prompt":"', b'"'

    def _grow(self, more: bytes) -> None:
        self._grown += more

    def _appended(self, turn: int) -> bytes:
        words = turn_words(self._trace, self._trajectory, turn, self._dialect.words_per_token)
        return _encode(f" {words}" if turn else words)[1:-1]

    def _said(self, turn: Turn, answer: AnswerStream) -> bytes:
        return _encode(answer.text)[1:-1]


class ChatContext(Context):
    """A recorded answer that calls tools goes back as it was recorded, since the messages after it refer to it; other
    answers go back as the server gave them."""

    path = "/chat/completions"
    opening, closing = b',"messages":[', b"]"

    def _fields(self) -> dict[str, Any]:
        return {"tools": self._trajectory.tools} if self._trajectory.tools else {}

    def _appended(self, turn: int) -> bytes:
        messages = self._trajectory.turns[turn].messages
        if messages:
            return _encode(messages)[1:-1]
        words = turn_words(self._trace, self._trajectory, turn, self._dialect.words_per_token)
        return _encode({"role": "user", "content": words})

    def _said(self, turn: Turn, answer: AnswerStream) -> bytes:
        recorded = turn.answer
        if recorded is not None and (recorded.get("tool_calls") or not answer.text):
            return _encode(recorded)
        return _encode({"role": "assistant", "content": answer.text})


CONTEXTS: dict[str, type[Context]] = {
    "ids": IdsContext,
    "text": TextContext,
    "chat": ChatContext,
}
