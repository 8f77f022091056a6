"""Distributions in figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


@dataclass(frozen=True)
class Summary:
    """Of some figures: how many, mean, extremes, and PERCENTILES by their names ("50", "99.9"). All NaN-free: of no
    figures, everything is 0."""

    count: int = 0
    mean: float = 0.0
    min: float = 0.0
    max: float = 0.0
    percentiles: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, figures: Iterable[float]) -> Summary:
        ordered = sorted(figures)
        if not ordered:
            return cls()
        return cls(
            len(ordered),
            math.fsum(ordered) / len(ordered),
            ordered[0],
            ordered[-1],
            {f"{p:g}": percentile(ordered, p) for p in PERCENTILES},
        )

    def p(self, percent: float) -> float:
        """One of PERCENTILES; 0 of no figures."""
        return self.percentiles.get(f"{percent:g}", 0.0)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """What `percent` % of the figures, in ascending order, do not exceed (nearest rank)."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]
