"""Agents on a cluster whose buffers keep blocks: less is read, every token is right, and idle is idle."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import Answer, complete, oracle, prompt, spec_of

AGENTS, TURNS = 3, 4


@pytest.mark.slow
async def test_growing_contexts_are_read_from_memory_as_far_as_they_are_there(
    start_own_cluster: StartCluster,
) -> None:
    cluster = await asyncio.to_thread(start_own_cluster, hot_tier=True, done_grace_s=60.0)
    spec = spec_of(cluster)
    async with httpx.AsyncClient(timeout=120) as client:

        async def agent(seed: int) -> list[Answer]:
            ids, answers = prompt(600, seed), []
            for turn in range(TURNS):
                answers.append(await complete(client, cluster, ids, 8))
                assert answers[-1].ids == oracle(spec, ids, 8)
                ids = [*ids, *answers[-1].ids, *prompt(100, 100 * seed + turn)]
            return answers

        told = await asyncio.gather(*map(agent, range(AGENTS)))
    hot = 0
    for answers in told:
        for answer in answers:
            explained = answer.explain
            mine = sum(explained["hot_tokens"].values())
            read = sum(explained["bytes_read"].values()) // spec.geometry.token_bytes
            assert mine + read == explained["hit_tokens"] == answer.cached_tokens
            hot += mine
    assert hot > 0
    await asyncio.to_thread(cluster.until_idle)
    status = await asyncio.to_thread(cluster.status)
    pools = [pool for process in status.processes.values() for pool in process.pools]
    assert any(pool.clean for pool in pools)
    assert all(pool.used == 0 for pool in pools)
