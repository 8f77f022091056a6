"""How long a batch's attention takes (paper §5, intra-engine). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def attention_pairs(cached: int, new: int) -> int:
    """(query, key) pairs of `new` tokens after `cached` ones: each looks at all before it and at itself."""
    return new * cached + new * (new + 1) // 2


@dataclass(frozen=True)
class AttentionFit:
    """Seconds of attention, summed over the layers of one forward, as profiling has found them:
    `fixed_s + per_token_s · Σ new + per_pair_s · Σ pairs`.

    `error` is the largest relative error over what was measured. Raises ValueError for what is negative: more work
    must not take less time.
    """

    fixed_s: float
    per_token_s: float
    per_pair_s: float
    error: float = 0.0

    def __post_init__(self) -> None:
        if min(self.fixed_s, self.per_token_s, self.per_pair_s, self.error) < 0:
            raise ValueError(f"attention does not take less time for more work: {self}")

    def seconds(self, batch: Iterable[tuple[int, int]]) -> float:
        """Of a batch of (cached, new)."""
        return self.fixed_s + sum(self.row_s(cached, new) for cached, new in batch)

    def row_s(self, cached: int, new: int) -> float:
        """What a row adds to a batch."""
        return self.per_token_s * new + self.per_pair_s * attention_pairs(cached, new)
