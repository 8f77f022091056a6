"""One answer's tokens as a client sees them: text, calls of functions, log-probabilities, ids. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dualpath.gateway.stops import StopStrings
from dualpath.gateway.tool_parser import CallDelta, Item, ToolParser, joined
from dualpath.gateway.tools import ToolCall
from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, Sampling


@dataclass(frozen=True)
class Piece:
    """What some tokens add to an answer; `offsets` says where in it each token's text begins, in characters."""

    text: str = ""
    tokens: tuple[Sampled, ...] = ()
    offsets: tuple[int, ...] = ()
    items: tuple[Item, ...] = ()
    """Text and parts of calls in the order in which they were said."""
    prompt: tuple[Sampled, ...] = ()
    """The prompt's tokens, where they are given back with their log-probabilities; the first has none."""
    prompt_offsets: tuple[int, ...] = ()

    @property
    def calls(self) -> list[CallDelta]:
        return [item for item in self.items if isinstance(item, CallDelta)]

    def apart(self) -> Iterator[Piece]:
        """The same in pieces with one part of a call each at most, all else with the first."""
        first, others = self.calls[:1], self.calls[1:]
        yield replace(self, items=(self.text, *first)) if others else self
        for delta in others:
            yield Piece(items=(delta,))

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        """One after the other."""
        return cls(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.tokens),
            tuple(offset for piece in pieces for offset in piece.offsets),
            tuple(item for piece in pieces for item in piece.items),
            tuple(token for piece in pieces for token in piece.prompt),
            tuple(offset for piece in pieces for offset in piece.prompt_offsets),
        )


@dataclass(frozen=True)
class Reading:
    """How an answer is to be read. `stops` are stop strings; `text_before` is the length of what stands before it in
    the same text, such as an echoed prompt. With `parser` it may hold calls."""

    stops: Sequence[str] = ()
    text_before: int = 0
    parser: ToolParser | None = None
    marks: Sequence[str] = ()
    """Special tokens with which calls are written."""
    nothing: bool = False
    """The client wants no answer, only its prompt: what is generated all the same is dropped."""


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
        self._deltas: list[CallDelta] = []
        self.shown = ""
        """All text that the client got, without calls."""

    @property
    def stopped(self) -> bool:
        """Nothing more is wanted: the answer ends with token number `tokens`, and others are ignored."""
        parser = self._reading.parser
        return self._stops.stopped or (parser is not None and parser.over)

    @property
    def calls(self) -> list[ToolCall]:
        """As far as they have come."""
        return joined(self._deltas)

    def add(self, tokens: Sequence[Sampled], *, last: bool) -> Piece:
        """The piece that `tokens` are; with `last` nothing is held back any more."""
        if self._reading.nothing:
            return Piece()
        items: list[Item] = []
        offsets: list[int] = []
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
        shown = "".join(item for item in items if isinstance(item, str))
        if self._reading.parser is not None:
            self.shown += shown
        return Piece(shown, tuple(tokens[: len(offsets)]), tuple(offsets), tuple(items))

    def reason(self, finish: str) -> str:
        """Why the answer ended, where its request ended for `finish`."""
        if self._reading.nothing:
            return "length"
        return "tool_calls" if finish == "stop" and self._deltas else finish

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

    def _read(self, text: str) -> list[Item]:
        """What is certain after text that is."""
        self._raw.append(text)
        parser = self._reading.parser
        if parser is None:
            return [text] if text else []
        return self._noted(parser.push(text))

    def _finish(self) -> list[Item]:
        parser = self._reading.parser
        return [] if parser is None else self._noted(parser.finish())

    def _noted(self, items: list[Item]) -> list[Item]:
        self._deltas += (item for item in items if isinstance(item, CallDelta))
        return items
