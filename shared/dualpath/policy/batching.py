"""What enters the next prefill forward (paper §5, intra-engine). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from dualpath.policy.api import BatchPolicy, Waiting
from dualpath.policy.attention import AttentionFit


class TokenBudget(BatchPolicy):
    """FIFO until `chunk_tokens` are to be computed, `max_rows` requests are in, or HBM is full.

    The last one is cut to what is left of the budget and of HBM (chunked prefill); nothing overtakes it.
    """

    def __init__(self, chunk_tokens: int, max_rows: int = 64) -> None:
        if chunk_tokens < 1 or max_rows < 1:
            raise ValueError(
                f"a batch of {chunk_tokens} tokens and {max_rows} requests computes nothing; "
                "set chunk_tokens and max_rows to 1 or more"
            )
        self.chunk_tokens = chunk_tokens
        self.max_rows = max_rows

    def select(self, waiting: Sequence[Waiting], hbm_free_bytes: int) -> list[int]:
        tokens, hbm = self.chunk_tokens, hbm_free_bytes
        chosen: list[int] = []
        for request in islice(waiting, self.max_rows):
            n = min(request.new, tokens)
            room = hbm - request.hbm_fixed
            if request.hbm_per_token:
                n = min(n, room // request.hbm_per_token)
            if room < 0 or n < 1:
                break
            chosen.append(n)
            tokens -= n
            hbm = room - n * request.hbm_per_token
            if n < request.new:
                break
        return chosen


class QuotaBatch(BatchPolicy):
    """FIFO while the predicted attention time stays within the compute quota; of the request that would exceed it,
    the largest chunk that does not, found by bisection. `TokenBudget`'s limits hold too.

    Engines of a group wait for the slowest at every layer: equal attention time is what makes them equally slow. A
    forward has one token at least, even where attention to its context alone takes longer than the quota.
    """

    def __init__(
        self, chunk_tokens: int, fit: AttentionFit, quota_s: float = 0.3, max_rows: int = 64
    ) -> None:
        if quota_s <= 0:
            raise ValueError(f"a compute quota of {quota_s:g} s computes nothing; set more than 0")
        self._budget = TokenBudget(chunk_tokens, max_rows)
        self.fit = fit
        self.quota_s = quota_s

    def select(self, waiting: Sequence[Waiting], hbm_free_bytes: int) -> list[int]:
        chosen = self._budget.select(waiting, hbm_free_bytes)
        left_s = self.quota_s - self.fit.fixed_s
        for index, (request, n) in enumerate(zip(waiting, chosen, strict=False)):
            row_s = self.fit.row_s(request.cached, n)
            if row_s > left_s:
                fits = self._largest_chunk(request.cached, n, left_s)
                if not index:
                    fits = max(fits, 1)
                return [*chosen[:index], fits] if fits else chosen[:index]
            left_s -= row_s
        return chosen

    def _largest_chunk(self, cached: int, new: int, left_s: float) -> int:
        """Of fewer than `new` tokens; 0 where one is too many."""
        low, high = 0, new - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.fit.row_s(cached, middle) <= left_s:
                low = middle
            else:
                high = middle - 1
        return low
