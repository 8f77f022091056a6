"""Seconds of a forward as a function of its work, by least relative squares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dualpath.policy.attention import AttentionFit, attention_pairs


@dataclass(frozen=True)
class Sample:
    """A measured forward of one row: `new` tokens after `cached` ones."""

    cached: int
    new: int
    seconds: float

    @property
    def pairs(self) -> float:
        """(new token, token that it attends to) pairs of causal attention."""
        return float(attention_pairs(self.cached, self.new))

    @property
    def terms(self) -> tuple[float, float, float]:
        return 1.0, float(self.new), self.pairs


def fit_forward(samples: Sequence[Sample]) -> AttentionFit:
    """The `fixed_s`, `per_token_s` and `per_pair_s`, none below 0, that predict the samples best; `error` is the
    largest relative error.

    Terms that would come out negative are left out, as are those that so few samples cannot tell apart: the
    time per token stays to the last. Raises ValueError without samples, or where one took no time.
    """
    if not samples or any(sample.seconds <= 0 for sample in samples):
        raise ValueError("a fit needs forwards that took some time")
    terms = [1] if len(samples) < 3 else [0, 1, 2]
    while True:
        solved = _solve(samples, terms)
        if solved is not None and all(value >= 0 for value in solved):
            break
        if len(terms) == 1:
            rates = [sample.new / sample.seconds for sample in samples]
            solved, terms = [len(rates) / sum(rates)], [1]
            break
        del terms[_least_useful(solved, terms)]
    values = [0.0, 0.0, 0.0]
    for term, value in zip(terms, solved, strict=True):
        values[term] = value
    fixed_s, per_token_s, per_pair_s = values
    fit = AttentionFit(fixed_s, per_token_s, per_pair_s)
    return replace(fit, error=max(abs(predict(fit, s) / s.seconds - 1) for s in samples))


def predict(fit: AttentionFit, sample: Sample) -> float:
    """Seconds that `fit` expects the forward of `sample` to take."""
    return fit.seconds([(sample.cached, sample.new)])


def _least_useful(solved: Sequence[float] | None, terms: Sequence[int]) -> int:
    """The term to leave out: one that came out negative, else the fixed time, then pairs; tokens only as the last."""
    candidates = [i for i in range(len(terms)) if terms[i] != 1] or [0]
    negative = [i for i in candidates if solved is not None and solved[i] < 0]
    return (negative or candidates)[0]


def _solve(samples: Sequence[Sample], terms: Sequence[int]) -> list[float] | None:
    """Normal equations of relative errors; None where the samples do not tell the terms apart."""
    scales = [max(sample.terms[t] for sample in samples) for t in terms]
    rows = [
        [sample.terms[t] / scale / sample.seconds for t, scale in zip(terms, scales, strict=True)]
        for sample in samples
    ]
    n = len(terms)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(n)] + [sum(row[i] for row in rows)]
        for i in range(n)
    ]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(matrix[r][i]))
        largest = max(abs(matrix[r][r]) for r in range(n))
        if abs(matrix[pivot][i]) <= 1e-9 * largest:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for r in range(n):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][n] / matrix[i][i] / scales[i] for i in range(n)]
