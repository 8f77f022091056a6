"""A prompt that is given back with the log-probabilities of its tokens. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from dualpath.gateway.pieces import Piece
from dualpath.model.text import Tokenizer
from dualpath.model.text_stream import Detokenizer
from dualpath.wire.types import Sampled, TokenScores


def echoed(
    prompt: Sequence[int], scores: Sequence[TokenScores], tokenizer: Tokenizer, text: str
) -> Piece:
    """`scores` are those of the prompt's tokens but the first, end to end, which nothing comes before; `text` is the
    prompt as it is given back. Raises RuntimeError where some are missing."""
    tokens = (Sampled(prompt[0]), *_scored(prompt[1:], scores))
    if len(tokens) != len(prompt):
        raise RuntimeError(f"{len(tokens)} of {len(prompt)} prompt tokens have log-probabilities")
    return Piece(prompt=tokens, prompt_offsets=_offsets(prompt, tokenizer, text))


def _offsets(prompt: Sequence[int], tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Where in `text` each token begins. What tokenizing put before the text, such as a BOS, has no place in it."""
    detokenizer, offsets, length = Detokenizer(tokenizer, frozenset(prompt)), list[int](), 0
    for token_id in prompt:
        offsets.append(length)
        length += len(detokenizer.push([token_id]))
    before = max(length + len(detokenizer.finish()) - len(text), 0)
    return tuple(max(offset - before, 0) for offset in offsets)


def _scored(ids: Sequence[int], scores: Sequence[TokenScores]) -> Iterator[Sampled]:
    at = 0
    for part in scores:
        chosen, best_ids, best = (
            array("f", part.chosen),
            array("i", part.ids),
            array("f", part.best),
        )
        for number, (token_id, logprob) in enumerate(
            zip(ids[at : at + len(part)], chosen, strict=True)
        ):
            row = slice(number * part.top, (number + 1) * part.top)
            yield Sampled(token_id, logprob, tuple(zip(best_ids[row], best[row], strict=True)))
        at += len(part)
