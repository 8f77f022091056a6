"""Two copies of each block on three shards, of which one is killed and one hangs while agents are served."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import Answer, complete, oracle, prompt, spec_of

PROMPTS, TOKENS = 12, 900


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_request_fails_while_a_shard_is_gone_and_another_hangs(
    start_own_cluster: StartCluster,
) -> None:
    cluster = await asyncio.to_thread(
        start_own_cluster, shards=3, store_replicas=2, done_grace_s=60
    )
    spec = spec_of(cluster)
    prompts = [prompt(TOKENS, seed) for seed in range(PROMPTS)]
    hits: dict[str, Counter[int]] = {}
    async with httpx.AsyncClient(timeout=120) as client:

        async def all_right(phase: str) -> None:
            """Ask for everything at once; `hits` counts cached tokens by phase."""
            answers: list[Answer] = await asyncio.gather(
                *(complete(client, cluster, ids, 8) for ids in prompts)
            )
            for ids, answer in zip(prompts, answers, strict=True):
                assert answer.ids == oracle(spec, ids, 8)
            hits[phase] = Counter(answer.cached_tokens for answer in answers)

        await all_right("cold")
        await all_right("warm")
        cluster.kill("storage-0")
        await all_right("one is gone")
        cluster.kill("storage-1", signal.SIGSTOP)
        await all_right("another hangs")
        await all_right("another hangs still")
        cluster.kill("storage-1", signal.SIGCONT)
        cluster.restart("storage-0")
        await all_right("back")
        await all_right("back and warm")
    most = spec.geometry.max_hit_blocks(TOKENS) * spec.geometry.block_tokens
    assert hits["warm"] == hits["one is gone"] == hits["back and warm"] == {most: PROMPTS}
    recomputed = sum((most - tokens) * n for tokens, n in hits["another hangs still"].items())
    assert recomputed > 0, "what both lost shards kept is computed anew"
    await asyncio.to_thread(cluster.until_idle)
