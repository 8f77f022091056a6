"""Runs that are compared: the order in which they take turns, the mean of their ratios, and how sure it is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

_What = TypeVar("_What")

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t, 95 % two-sided, by degrees of freedom from 1 on; the last one serves, a little too wide, for more."""


@dataclass(frozen=True)
class Interval:
    """Geometric mean of ratios with its 95 % interval (Student's t of their logarithms)."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}, 95 % interval {self.low:.3f} to {self.high:.3f} ({self.n} pairs)"


def in_turn(what: Sequence[_What], number: int) -> Sequence[_What]:
    """`what` is compared, in the order of round `number`: every other one the other way, so that what drifts meets
    all alike."""
    return what[::-1] if number % 2 else what


def interval(ratios: Sequence[float]) -> Interval:
    """Raises ValueError for fewer than two, of which no interval can be told, and for what is not positive."""
    if len(ratios) < 2 or min(ratios) <= 0:
        raise ValueError("an interval needs two ratios or more, all above 0")
    logs = [math.log(ratio) for ratio in ratios]
    mean, n = statistics.fmean(logs), len(logs)
    half = _T_95[min(n - 1, len(_T_95)) - 1] * statistics.stdev(logs) / math.sqrt(n)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)
