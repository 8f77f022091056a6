"""What enters the next prefill forward. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from dualpath.policy.api import BatchPolicy, Waiting


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
