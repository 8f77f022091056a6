"""How a token is chosen: a pure function of the parameters, the ids before it and the logits.

Neither state nor a stream of random numbers: the same token comes out on whichever worker, and in
whichever attempt, it is drawn.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dualpath.model.errors import ModelError
from dualpath.model.history import History
from dualpath.wire.types import Sampled, Sampling

Scores: TypeAlias = NDArray[np.float32]
_LOOK = 1024
"""So many of the best ids are sorted at first: nearly always enough, and far cheaper than all."""


def sample(
    sampling: Sampling, index: int, logits: Scores, history: History | None = None
) -> Sampled:
    """Choose generated token number `index` (from 0) by `logits`, `[vocabulary]`, which stay unchanged.

    Order: `logit_bias`, `repetition_penalty`, presence and frequency penalty, grammar, `min_tokens` (ids of
    `stop_ids` cannot be chosen before), temperature, `min_p`, `top_k`, `top_p`. Among equal logits the lower id comes
    first. Log-probabilities are those of the raw logits. `history` is needed where `sampling` has penalties or a
    grammar. Raises ModelError where no logit is a number.
    """
    scores = _adjusted(sampling, index, logits, history)
    best = int(np.argmax(scores))
    if not np.isfinite(scores[best]):
        raise ModelError(
            "the model's logits are not finite numbers; its KV-Cache or its weights are damaged"
        )
    if sampling.temperature > 0:
        best = _draw(sampling, uniform(sampling.seed, index), scores)
    if sampling.top_logprobs is None:
        return Sampled(best)
    return _with_logprobs(best, sampling.top_logprobs, logits)


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) that decides token `index` of a request with `seed`."""
    digest = hashlib.blake2b(
        f"{seed}:{index}".encode(), digest_size=8, person=b"dualpath.draw.1"
    ).digest()
    return float(int.from_bytes(digest, "little") >> 11) / (1 << 53)


def best_ids(scores: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """The `count` ids of the highest scores (with equals of the last, perhaps more), best first."""
    size = len(scores)
    if count < size:
        bound = np.partition(scores, size - count)[size - count]
        ids = np.flatnonzero(scores >= bound)
    else:
        ids = np.arange(size)
    return ids[np.argsort(-scores[ids], kind="stable")]


def _adjusted(sampling: Sampling, index: int, logits: Scores, history: History | None) -> Scores:
    """`logits`, or a copy to which bias, penalties and bans have been applied."""
    banned = sampling.stop_ids if index < sampling.min_tokens else ()
    if not (sampling.logit_bias or banned or sampling.penalizes or sampling.grammar):
        return logits
    scores, size = logits.copy(), len(logits)
    for token, bias in sampling.logit_bias:
        if token < size:
            scores[token] += bias
    if sampling.penalizes or sampling.grammar:
        if history is None:
            raise ValueError("penalties and grammars need the ids that came before")
        if sampling.penalizes:
            _penalize(sampling, scores, history)
        if (allowed := history.allowed(size)) is not None:
            scores[~allowed] = -np.inf
    scores[[token for token in banned if token < size]] = -np.inf
    return scores


def _penalize(sampling: Sampling, scores: Scores, history: History) -> None:
    generated, counts = history.generated_ids()
    if sampling.penalizes_prompt:
        seen = np.union1d(history.prompt_ids(), generated)
        found = scores[seen]
        penalty = np.float32(sampling.repetition_penalty)
        scores[seen] = np.where(found > 0, found / penalty, found * penalty)
    scores[generated] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(
        np.float32
    )


def _draw(sampling: Sampling, at: float, scores: Scores) -> int:
    """Inverse CDF at `at` over the ids in order of probability, cut by `min_p`, to `top_k`, then to `top_p`."""
    size = len(scores)
    scaled = scores.astype(np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    if sampling.min_p:
        weights[weights < sampling.min_p] = 0.0
    limited = 0 < sampling.top_k < size
    ids = best_ids(scaled, sampling.top_k)[: sampling.top_k] if limited else best_ids(scaled, _LOOK)
    cumulative = np.cumsum(weights[ids])
    total = cumulative[-1] if limited else weights.sum()
    needed = total * (sampling.top_p if sampling.top_p < 1 else at)
    if not limited and cumulative[-1] <= needed:
        ids = best_ids(scaled, size)
        cumulative = np.cumsum(weights[ids])
    last = int(np.count_nonzero(weights[ids])) - 1
    mass = total
    if sampling.top_p < 1:
        last = min(last, int(np.searchsorted(cumulative, total * sampling.top_p)))
        mass = cumulative[last]
    return int(ids[min(last, int(np.searchsorted(cumulative, at * mass, side="right")))])


def _with_logprobs(chosen: int, count: int, logits: Scores) -> Sampled:
    raw = logits.astype(np.float64)
    peak = raw.max()
    normalizer = peak + np.log(np.exp(raw - peak).sum())
    best = best_ids(logits, count)[:count] if count else ()
    return Sampled(
        chosen,
        float(raw[chosen] - normalizer),
        tuple((int(token), float(raw[token] - normalizer)) for token in best),
    )
