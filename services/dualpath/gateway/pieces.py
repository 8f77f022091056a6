"""One answer's tokens as a client sees them: text, log-probabilities, ids. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.gateway.stops import StopStrings
from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, Sampling


@dataclass(frozen=True)
class Piece:
    """What some tokens add to an answer; `offsets` says where in it each token's text begins, in characters."""

    text: str = ""
    tokens: tuple[Sampled, ...] = ()
    offsets: tuple[int, ...] = ()

    @classmethod
    def joined(cls, pieces: Sequence[Piece]) -> Piece:
        """One after the other."""
        return cls(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.tokens),
            tuple(offset for piece in pieces for offset in piece.offsets),
        )


class AnswerText:
    """Turns the tokens of one answer into pieces. The token that stops generation has no text, and neither has
    a stop string, nor what its last token says behind it.

    `text_before` is the length of what stands before the answer in the same text, such as an echoed prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        stops: Sequence[str] = (),
        *,
        text_before: int = 0,
    ) -> None:
        self._stop_ids = frozenset(sampling.stop_ids)
        self._min_tokens = sampling.min_tokens
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._before = self._length = text_before
        self._shown: list[str] = []
        self._ends = array("i")
        """Of each token, where its text ends, in characters; −1 where that is within a character."""
        self.tokens = 0
        """So many tokens belong to the answer."""

    @property
    def stopped(self) -> bool:
        """A stop string has come: the answer ends with token number `tokens`, and others are ignored."""
        return self._stops.stopped

    def add(self, tokens: Sequence[Sampled], *, last: bool) -> Piece:
        """The piece that `tokens` are; with `last` nothing is held back any more."""
        texts: list[str] = []
        offsets: list[int] = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            offsets.append(self._length)
            texts.append(self._push(token.token_id))
        if last and not self.stopped:
            texts.append(self._show(self._detokenizer.finish()))
            if not self.stopped:
                texts.append(self._stops.finish())
        self._shown += texts
        return Piece("".join(texts), tuple(tokens[: len(offsets)]), tuple(offsets))

    def spoken(self) -> tuple[int, str]:
        """How many tokens the client has seen as text, and that text: what it would send back. A token that is
        partly shown does not count, nor do special tokens at the end, which have no text."""
        shown = "".join(self._shown)
        length = max(0, 0, *(end for end in self._ends if end <= len(shown)))
        count = self._ends.index(length) + 1 if length > 0 else 0
        return count, shown[:length]

    def _push(self, token_id: int) -> str:
        if token_id in self._stop_ids:
            self._ends.append(-1)
            return ""
        text = self._show(self._detokenizer.push([token_id]))
        self._ends.append(-1 if self._detokenizer.pending else self._length - self._before)
        return text

    def _show(self, text: str) -> str:
        self._length += len(text)
        return self._stops.push(text, armed=self.tokens > self._min_tokens)
