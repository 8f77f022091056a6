"""One answer's tokens as a client sees them: text, calls of functions, log-probabilities, ids. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.gateway.stops import StopStrings
from dualpath.gateway.tools import ToolCall, ToolParser
from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, Sampling


@dataclass(frozen=True)
class Piece:
    """What some tokens add to an answer; `offsets` says where in it each token's text begins, in characters.
    `calls` have their numbers within the answer."""

    text: str = ""
    tokens: tuple[Sampled, ...] = ()
    offsets: tuple[int, ...] = ()
    calls: tuple[tuple[int, ToolCall], ...] = ()
    items: tuple[str | ToolCall, ...] = ()
    """Text and calls in the order in which they were said."""

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        """One after the other."""
        return cls(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.tokens),
            tuple(offset for piece in pieces for offset in piece.offsets),
            tuple(call for piece in pieces for call in piece.calls),
            tuple(item for piece in pieces for item in piece.items),
        )


@dataclass(frozen=True)
class Reading:
    """How an answer is to be read. `stops` are stop strings; `text_before` is the length of what stands before it in
    the same text, such as an echoed prompt. With `parser` it may hold calls, one only if `one_call`."""

    stops: Sequence[str] = ()
    text_before: int = 0
    parser: ToolParser | None = None
    marks: Sequence[str] = ()
    """Special tokens with which calls are written."""
    one_call: bool = False


class AnswerText:
    """Turns the tokens of one answer into pieces. The token that stops generation has no text, and neither has
    a stop string, nor what its last token says behind it."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, reading: Reading | None = None
    ) -> None:
        self._reading = reading or Reading()
        self._stop_ids = frozenset(sampling.stop_ids)
        self._min_tokens = sampling.min_tokens
        self._detokenizer = Detokenizer(tokenizer, tokenizer.special_ids(self._reading.marks))
        self._stops = StopStrings(self._reading.stops)
        self._length = self._reading.text_before
        self._raw: list[str] = []
        self._ends = array("i")
        """Of each token, where its text ends, in characters; −1 where that is within a character."""
        self.tokens = 0
        """So many tokens belong to the answer."""
        self.calls: list[ToolCall] = []
        self.shown = ""
        """All text that the client got, without calls."""

    @property
    def stopped(self) -> bool:
        """Nothing more is wanted: the answer ends with token number `tokens`, and others are ignored."""
        return self._stops.stopped or (self._reading.one_call and bool(self.calls))

    def add(self, tokens: Sequence[Sampled], *, last: bool) -> Piece:
        """The piece that `tokens` are; with `last` nothing is held back any more."""
        items: list[str | ToolCall] = []
        offsets: list[int] = []
        before = len(self.calls)
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            offsets.append(self._length)
            items += self._read(self._push(token.token_id))
        if last and not self.stopped:
            items += self._read(self._show(self._detokenizer.finish()))
            if not self._stops.stopped:
                items += self._read(self._stops.finish())
        if last or self.stopped:
            items += self._finish()
        calls = tuple(enumerate(self.calls))[before:]
        shown = "".join(item for item in items if isinstance(item, str))
        if self._reading.parser is not None:
            self.shown += shown
        return Piece(shown, tuple(tokens[: len(offsets)]), tuple(offsets), calls, tuple(items))

    def spoken(self) -> tuple[int, str]:
        """How many tokens the client has seen as text, and that text: what it would send back. A token that is
        partly shown does not count, nor do special tokens at the end, which have no text."""
        raw = "".join(self._raw)
        length = max([0, *(end for end in self._ends if end <= len(raw))])
        count = self._ends.index(length) + 1 if length else 0
        return count, raw[:length]

    def _push(self, token_id: int) -> str:
        if token_id in self._stop_ids:
            self._ends.append(-1)
            return ""
        text = self._show(self._detokenizer.push([token_id]))
        at = self._length - self._reading.text_before
        self._ends.append(-1 if self._detokenizer.pending else at)
        return text

    def _show(self, text: str) -> str:
        self._length += len(text)
        return self._stops.push(text, armed=self.tokens > self._min_tokens)

    def _read(self, text: str) -> list[str | ToolCall]:
        """What is certain after text that is."""
        self._raw.append(text)
        parser = self._reading.parser
        if parser is None:
            return [text] if text else []
        return self._noted(parser.push(text))

    def _finish(self) -> list[str | ToolCall]:
        parser = self._reading.parser
        return [] if parser is None else self._noted(parser.finish())

    def _noted(self, items: list[str | ToolCall]) -> list[str | ToolCall]:
        self.calls += (item for item in items if isinstance(item, ToolCall))
        return items
