"""One attempt at one request, as its prefill node sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dualpath.blocks import KVGeometry, Phase, unpack_keys
from dualpath.model.history import History
from dualpath.node.clock import PhaseClock
from dualpath.node.reading import Share
from dualpath.prefill.ring import Ring
from dualpath.wire.control import AssignPrefill
from dualpath.wire.data import LoadDone
from dualpath.wire.types import Attempt


class PrefillRequest:
    """What is known of the attempt. Changed on the event loop only, by its task and its engine.

    Tokens below `cached_tokens` have KV: at first the hits, then the chunks that were computed too. The PE's
    share of the hits is in `slots` until the first chunk has left.
    """

    def __init__(self, assign: AssignPrefill, geometry: KVGeometry) -> None:
        self.assign = assign
        self.geometry = geometry
        self.keys = unpack_keys(assign.keys)
        self.clock = PhaseClock(Phase.LOADING)
        self.load_done: asyncio.Future[LoadDone] = asyncio.get_running_loop().create_future()
        self.slots: list[int] = []
        self.clean: dict[int, bytes] = {}
        """Which of `slots` hold a block that is right, and its key; nothing but reads ever writes there."""
        self.hit_blocks = 0
        self.prefill_share = Share()
        self.decode_share: LoadDone | None = None
        self.cached_tokens = 0
        self.token_ids: list[int] = []
        """Ids of the tokens from the hits' end on."""
        self.history: History | None = None
        self.resident: Ring | None = None
        """Without layerwise prefill: all layers of the whole prompt, kept between chunks."""
        self.chunks = 0
        self.timings_s: dict[str, float] = {}
        """Parts of phases (`AttemptStats.timings_s`)."""

    @property
    def attempt(self) -> Attempt:
        return self.assign.attempt

    @property
    def hit_tokens(self) -> int:
        return self.hit_blocks * self.geometry.block_tokens

    @property
    def own_tokens(self) -> int:
        """Hit tokens in this node's slots: [0, own_tokens)."""
        return min(self.assign.prefill_blocks, self.hit_blocks) * self.geometry.block_tokens

    @property
    def new_tokens(self) -> int:
        return self.assign.prompt_tokens - self.cached_tokens

    def fix_hit(self) -> None:
        """Decide the hit length, once: up to the first hole over both shares; nothing where the whole prompt's
        log-probabilities are wanted, which come of computing it."""
        found = self.prefill_share.blocks
        if found == self.assign.prefill_blocks and self.decode_share is not None:
            found += self.decode_share.blocks
        if self.assign.sampling.prompt_logprobs:
            found = 0
        self.hit_blocks = min(found, self.geometry.max_hit_blocks(self.assign.prompt_tokens))
        self.cached_tokens = self.hit_tokens

    def ids(self, start: int, stop: int) -> Sequence[int]:
        """Ids of prompt tokens [start, stop), all at or after the hits' end."""
        return self.token_ids[start - self.hit_tokens : stop - self.hit_tokens]

    def parent_key(self, tokens: int) -> bytes:
        """Key of the last full block at or before `tokens`."""
        blocks = self.geometry.full_blocks(tokens)
        return self.keys[blocks - 1] if blocks else self.assign.root
