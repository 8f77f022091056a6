"""The sampler: exact, and the same wherever it runs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dualpath.model.api import ModelError
from dualpath.model.history import History, history_start, make_history
from dualpath.model.sampler import best_ids, sample, uniform
from dualpath.wire.types import Sampled, Sampling

logits = arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.integers(-40, 40).map(lambda number: number / 4),
)
"""On a grid, so that ties are frequent."""

sampling = st.builds(
    Sampling,
    max_tokens=st.just(8),
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([0.0501, 0.4937, 0.9123, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    min_p=st.sampled_from([0.0, 0.0511, 0.507, 1.0]),
)


def slow_draw(parameters: Sampling, at: float, scores: NDArray[np.float32]) -> int:
    """The definition, sorted and summed in full."""
    ids = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    ids = ids[: parameters.top_k or len(ids)]
    peak = float(scores[ids[0]])
    weights = [math.exp((float(scores[token]) - peak) / parameters.temperature) for token in ids]
    weights = [weight for weight in weights if weight >= parameters.min_p]
    total, reached, kept = math.fsum(weights), 0.0, 0
    for weight in weights:
        kept += 1
        reached += weight
        if parameters.top_p < 1 and reached >= total * parameters.top_p:
            break
    target, passed = at * math.fsum(weights[:kept]), 0.0
    for token, weight in zip(ids[:kept], weights, strict=False):
        passed += weight
        if passed > target:
            return token
    return ids[kept - 1]


@given(logits, sampling, st.integers(0, 1000))
def test_draw_follows_its_definition(
    scores: NDArray[np.float32], parameters: Sampling, index: int
) -> None:
    result = sample(parameters, index, scores)
    if parameters.temperature == 0:
        assert result == Sampled(int(np.argmax(scores)))
    else:
        assert result.token_id == slow_draw(parameters, uniform(parameters.seed, index), scores)


@given(logits, sampling, st.integers(0, 5), st.integers(0, 5))
def test_stop_ids_come_only_after_min_tokens(
    scores: NDArray[np.float32], parameters: Sampling, index: int, least: int
) -> None:
    stop = tuple(range(0, len(scores), 2)) if len(scores) > 1 else ()
    before = scores.copy()
    result = sample(
        Sampling(
            max_tokens=8,
            seed=parameters.seed,
            min_tokens=least,
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            stop_ids=(*stop, 10**6),
        ),
        index,
        scores,
    )
    if index < least:
        assert result.token_id not in stop
    assert np.array_equal(scores, before)


@given(logits, st.integers(0, 8))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(
    scores: NDArray[np.float32], count: int
) -> None:
    parameters = Sampling(max_tokens=8, seed=3, temperature=2.0, top_k=2, top_logprobs=count)
    result = sample(parameters, 0, scores)
    total = math.fsum(math.exp(float(score)) for score in scores)
    assert result.logprob == pytest.approx(float(scores[result.token_id]) - math.log(total))
    assert [token for token, _ in result.top] == sorted(
        range(len(scores)), key=lambda token: (-scores[token], token)
    )[:count]
    for token, logprob in result.top:
        assert logprob == pytest.approx(float(scores[token]) - math.log(total))


@given(logits, st.integers(1, 70))
def test_best_ids_are_the_head_of_the_stable_order(scores: NDArray[np.float32], count: int) -> None:
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    assert best_ids(scores, count).tolist()[:count] == order[:count]


def test_draws_match_the_distribution() -> None:
    scores = np.log(np.array([0.5, 0.1, 0.3, 0.1], np.float32))
    parameters = Sampling(max_tokens=1, seed=11, temperature=1.0)
    counts = Counter(sample(parameters, index, scores).token_id for index in range(4000))
    for token, share in enumerate((0.5, 0.1, 0.3, 0.1)):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)


def test_vocabulary_larger_than_the_first_look() -> None:
    """A flat distribution reaches far behind the ids that are sorted at first."""
    scores = np.zeros(5000, np.float32)
    seen = {
        sample(Sampling(max_tokens=1, seed=1, temperature=1.0), index, scores).token_id
        for index in range(200)
    }
    assert max(seen) > 4000
    assert all(
        sample(Sampling(max_tokens=1, seed=1, temperature=1.0), index, scores).token_id
        == int(uniform(1, index) * 5000)
        for index in range(200)
    )
    half = Sampling(max_tokens=1, seed=1, temperature=1.0, top_p=0.5)
    assert all(sample(half, index, scores).token_id < 2500 for index in range(200))
    wide = Sampling(max_tokens=1, seed=1, temperature=1.0, top_k=2000)
    assert all(sample(wide, index, scores).token_id < 2000 for index in range(200))


def test_uniform_is_pinned_to_seed_and_index() -> None:
    """Golden: another value would change the tokens of a second attempt after an upgrade of one worker."""
    assert uniform(0, 0) == pytest.approx(0.16489926479913664, abs=0)
    assert uniform(7, 41) == pytest.approx(0.7391378251086249, abs=0)
    assert uniform(-1, 1) != uniform(1, 1)


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ModelError, match="not finite"):
        sample(Sampling(max_tokens=1, seed=0), 0, np.array([0.0, np.nan], np.float32))
    with pytest.raises(ModelError, match="not finite"):
        sample(Sampling(max_tokens=1, seed=0), 0, np.array([-np.inf], np.float32))


# ── penalties and bias ─────────────────────────────────────────────────────────────────────────────
penalties = st.builds(
    Sampling,
    max_tokens=st.just(8),
    seed=st.just(0),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.75]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.25]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.25]),
    logit_bias=st.sampled_from([(), ((0, 3.0), (2, -100.0)), ((1, 0.5), (99, 1.0))]),
)
ids = st.lists(st.integers(0, 3), max_size=6)


def slow_scores(
    parameters: Sampling, scores: NDArray[np.float32], prompt: list[int], generated: list[int]
) -> list[float]:
    """The definition, token by token."""
    adjusted = []
    for token, raw in enumerate(scores.tolist()):
        score = raw + dict(parameters.logit_bias).get(token, 0.0)
        if token in prompt or token in generated:
            factor = parameters.repetition_penalty
            score = score / factor if score > 0 else score * factor
        if token in generated:
            score -= parameters.presence_penalty
        adjusted.append(score - parameters.frequency_penalty * generated.count(token))
    return adjusted


@given(arrays(np.float32, 4, elements=st.integers(-8, 8).map(lambda n: n / 4)), penalties, ids, ids)
def test_penalties_and_bias_follow_their_definition(
    scores: NDArray[np.float32], parameters: Sampling, prompt: list[int], generated: list[int]
) -> None:
    before = scores.copy()
    result = sample(parameters, len(generated), scores, History(parameters, prompt, generated))
    wanted = slow_scores(parameters, scores, prompt, generated)
    assert wanted[result.token_id] == pytest.approx(max(wanted), abs=1e-5)
    assert np.array_equal(scores, before)


@given(penalties, ids, ids, st.integers(0, 6))
def test_a_worker_that_takes_over_has_the_same_history(
    parameters: Sampling, prompt: list[int], generated: list[int], split: int
) -> None:
    """Token by token on one worker, or made anew of ids on another."""
    kept = History(parameters, prompt)
    for token in generated:
        kept.append(token)
    sequence = prompt + generated
    start = history_start(parameters, len(sequence), len(generated))
    again = make_history(parameters, sequence[start:], len(generated))
    scores = np.zeros(4, np.float32)
    if again is None:
        assert start == len(sequence)
        assert not parameters.penalizes
    else:
        index = len(generated)
        assert sample(parameters, index, scores, again) == sample(parameters, index, scores, kept)


def test_penalties_without_what_came_before_are_an_error() -> None:
    with pytest.raises(ValueError, match="ids that came before"):
        sample(Sampling(max_tokens=1, seed=0, presence_penalty=1), 0, np.zeros(2, np.float32))


def test_a_bias_of_a_hundred_chooses_and_forbids() -> None:
    scores = np.array([1.0, 2.0, 3.0], np.float32)
    for temperature in (0.0, 1.0):
        only = Sampling(max_tokens=1, seed=0, temperature=temperature, logit_bias=((0, 100.0),))
        never = Sampling(max_tokens=1, seed=0, temperature=temperature, logit_bias=((2, -100.0),))
        assert all(sample(only, index, scores).token_id == 0 for index in range(50))
        assert all(sample(never, index, scores).token_id != 2 for index in range(50))
