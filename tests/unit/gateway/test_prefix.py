"""The estimate never costs a request its life, or more than its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dualpath.blocks import KVGeometry, KVPart
from dualpath.gateway.prefix import PrefixEstimate
from dualpath.kvstore.api import PrefixMatch

GEOMETRY = KVGeometry(4, ((KVPart("k", 8),),))
KEYS = [bytes([i]) * 16 for i in range(3)]


class Store:
    def __init__(self, blocks: int | None) -> None:
        self.blocks, self.asked = blocks, 0

    async def match(self, keys: Sequence[bytes]) -> PrefixMatch:
        self.asked = len(keys)
        if self.blocks is None:
            await asyncio.Event().wait()
        return PrefixMatch(self.blocks or 0)


@pytest.mark.parametrize(("tokens", "limit"), [(12, 2), (13, 3), (15, 3)])
async def test_the_last_token_is_never_a_hit(tokens: int, limit: int) -> None:
    store = Store(99)
    assert await PrefixEstimate(GEOMETRY, store).hit_blocks(KEYS, tokens) == limit
    assert store.asked == limit


async def test_a_prompt_within_a_block_asks_nobody() -> None:
    store = Store(1)
    assert await PrefixEstimate(GEOMETRY, store).hit_blocks([], 3) == 0
    assert await PrefixEstimate(GEOMETRY, store).hit_blocks(KEYS[:1], 4) == 0
    assert await PrefixEstimate(GEOMETRY, None).hit_blocks(KEYS, 13) == 0
    assert store.asked == 0


async def test_shards_that_do_not_answer_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualpath.gateway.prefix.ESTIMATE_S", 0.01)
    assert await PrefixEstimate(GEOMETRY, Store(None)).hit_blocks(KEYS, 13) == 0
