"""One answer's tokens as a client sees them: text, log-probabilities, ids. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, Sampling


@dataclass(frozen=True)
class Piece:
    """What some tokens add to an answer; `offsets` says where in it each token's text begins, in characters."""

    text: str
    tokens: tuple[Sampled, ...]
    offsets: tuple[int, ...]


class AnswerText:
    """Turns the tokens of one answer into pieces. The token that stops generation has no text."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling) -> None:
        self.tokenizer = tokenizer
        self._stop_ids = frozenset(sampling.stop_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._length = 0

    def add(self, tokens: Sequence[Sampled], *, last: bool) -> Piece:
        """The piece that `tokens` are; with `last` nothing is held back any more."""
        texts, offsets = [], []
        for token in tokens:
            offsets.append(self._length)
            texts.append("" if token.token_id in self._stop_ids else self._push(token.token_id))
        if last:
            texts.append(self._detokenizer.finish())
            self._length += len(texts[-1])
        return Piece("".join(texts), tuple(tokens), tuple(offsets))

    def _push(self, token_id: int) -> str:
        text = self._detokenizer.push([token_id])
        self._length += len(text)
        return text
