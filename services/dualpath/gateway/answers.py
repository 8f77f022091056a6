"""The JSON of answers, whole and in chunks: OpenAI's two formats, with vLLM's token ids. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualpath.gateway.pieces import Piece
from dualpath.gateway.tool_parser import CallDelta, joined
from dualpath.model.text import Tokenizer
from dualpath.wire.types import Sampled

Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def json(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True)
class Opening:
    """What is told of a choice before its first token. `prompt_ids` is None unless the client asked for token ids,
    `echo` empty unless it wants its prompt back."""

    index: int = 0
    prompt_ids: Sequence[int] | None = None
    echo: str = ""


@dataclass(frozen=True)
class Answer:
    """A choice that is finished."""

    opening: Opening
    piece: Piece
    finish: str


@dataclass(frozen=True)
class AnswerFormat(ABC):
    """The JSON that answers one request. `created` is in seconds since the epoch."""

    request_id: str
    model: str
    created: int
    tokenizer: Tokenizer
    logprobs: int | None

    prefix = ""
    """Of the answer's id."""
    whole_object = ""
    chunk_object = ""

    def whole(self, answers: Sequence[Answer], usage: Usage) -> Json:
        """The answer to a request that does not stream."""
        choices = [
            self._choice(answer.opening, answer.piece)
            | self._details(answer.opening, answer.piece)
            | {"finish_reason": answer.finish}
            for answer in answers
        ]
        return self._envelope(self.whole_object, choices) | {"usage": usage.json()}

    def chunk(self, opening: Opening, piece: Piece, finish: str | None, *, first: bool) -> Json:
        """A part of a stream; `first` of its choice."""
        choice = (
            self._delta(opening, piece, first)
            | self._details(opening, piece)
            | {"finish_reason": finish}
        )
        return self._envelope(self.chunk_object, [choice])

    def usage_chunk(self, usage: Usage) -> Json:
        """The last part of a stream that includes usage."""
        return self._envelope(self.chunk_object, []) | {"usage": usage.json()}

    def says_something(self, opening: Opening, piece: Piece) -> bool:
        """Whether a chunk of its own is due: not for a character of which only the first bytes are here."""
        return bool(piece.text or piece.calls or piece.prompt) or (
            bool(piece.tokens) and (self.logprobs is not None or opening.prompt_ids is not None)
        )

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": f"{self.prefix}{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _details(self, opening: Opening, piece: Piece) -> Json:
        silent = self.logprobs is None or not (piece.tokens or piece.prompt)
        details: Json = {"logprobs": None if silent else self._logprobs(piece)}
        if opening.prompt_ids is not None:
            details["token_ids"] = [token.token_id for token in piece.tokens]
        return details

    @abstractmethod
    def _choice(self, opening: Opening, piece: Piece) -> Json: ...

    @abstractmethod
    def _delta(self, opening: Opening, piece: Piece, first: bool) -> Json: ...

    @abstractmethod
    def _logprobs(self, piece: Piece) -> Json: ...


@dataclass(frozen=True)
class ChatFormat(AnswerFormat):
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole(self, answers: Sequence[Answer], usage: Usage) -> Json:
        return super().whole(answers, usage) | _prompt(answers[0].opening)

    def chunk(self, opening: Opening, piece: Piece, finish: str | None, *, first: bool) -> Json:
        chunk = super().chunk(opening, piece, finish, first=first)
        return chunk | _prompt(opening) if first and opening.index == 0 else chunk

    def _choice(self, opening: Opening, piece: Piece) -> Json:
        text = piece.text or (None if piece.calls else "")
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if piece.calls:
            message["tool_calls"] = [
                self._named(opening, number, call.name, call.arguments)
                for number, call in enumerate(joined(piece.calls))
            ]
        return {"index": opening.index, "message": message}

    def _delta(self, opening: Opening, piece: Piece, first: bool) -> Json:
        delta: Json = {"role": "assistant"} if first else {}
        if piece.text or (first and not piece.calls):
            delta["content"] = piece.text
        if piece.calls:
            delta["tool_calls"] = [self._part(opening, call) for call in piece.calls]
        return {"index": opening.index, "delta": delta}

    def _part(self, opening: Opening, call: CallDelta) -> Json:
        if call.name is None:
            return {"index": call.number, "function": {"arguments": call.arguments}}
        named = self._named(opening, call.number, call.name, call.arguments)
        return {"index": call.number} | named

    def _named(self, opening: Opening, number: int, name: str, arguments: str) -> Json:
        return {
            "id": call_id(self.request_id, opening.index, number),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _logprobs(self, piece: Piece) -> Json:
        return {"content": self.entries(piece), "refusal": None}

    def entries(self, piece: Piece) -> list[Json]:
        """Log-probabilities of each token."""
        return [
            self._entry(token.token_id, token.logprob)
            | {"top_logprobs": [self._entry(*best) for best in token.top[: self.logprobs]]}
            for token in piece.tokens
        ]

    def _entry(self, token_id: int, logprob: float | None) -> Json:
        data = self.tokenizer.token_bytes(token_id)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": _finite(logprob),
            "bytes": list(data),
        }


@dataclass(frozen=True)
class CompletionFormat(AnswerFormat):
    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _choice(self, opening: Opening, piece: Piece) -> Json:
        return self._delta(opening, piece, True)

    def _delta(self, opening: Opening, piece: Piece, first: bool) -> Json:
        text = opening.echo + piece.text if first else piece.text
        choice: Json = {"index": opening.index, "text": text}
        return choice | _prompt(opening) if first else choice

    def _logprobs(self, piece: Piece) -> Json:
        """Of the echoed prompt's tokens too; before its first there is nothing that could make it probable."""
        tokens = (*piece.prompt, *piece.tokens)
        logprobs: list[float | None] = [_finite(token.logprob) for token in tokens]
        tops: list[dict[str, float] | None] = [self._top(token) for token in tokens]
        if piece.prompt:
            logprobs[0] = tops[0] = None
        return {
            "tokens": [self._name(token.token_id) for token in tokens],
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": [*piece.prompt_offsets, *piece.offsets],
        }

    def _top(self, token: Sampled) -> dict[str, float]:
        """The best, and as OpenAI has it the token itself, where it is none of them."""
        top: dict[str, float] = {}
        for token_id, logprob in (*token.top[: self.logprobs], (token.token_id, token.logprob)):
            # Several tokens may have the same text: then the most probable counts.
            top.setdefault(self._name(token_id), _finite(logprob))
        return top

    def _name(self, token_id: int) -> str:
        data = self.tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            # As OpenAI names a token that is a piece of a character.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def call_id(request_id: str, choice: int, number: int) -> str:
    """The name of a call, by which its result is sent back."""
    return f"call_{request_id}_{choice}_{number}"


def _prompt(opening: Opening) -> Json:
    return {} if opening.prompt_ids is None else {"prompt_token_ids": list(opening.prompt_ids)}


def _finite(logprob: float | None) -> float:
    """JSON has no −∞: as OpenAI, −9999 stands for what cannot come."""
    return -9999.0 if logprob is None else max(logprob, -9999.0)
