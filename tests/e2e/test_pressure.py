"""Memory for barely one request: everything is served all the same, over every path, and nothing is left held."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import complete, oracle, prompt, spec_of

BLOCK = 64 * 8 * 256


@pytest.mark.parametrize(
    "read_path", [pytest.param("round-robin", marks=pytest.mark.slow), "halves"]
)
@pytest.mark.parametrize("layerwise", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_fifty_requests_through_memory_for_barely_one(
    start_own_cluster: StartCluster, read_path: str, layerwise: bool
) -> None:
    cluster = start_own_cluster(
        read_path=read_path,
        layerwise=layerwise,
        max_context=1024,
        chunk_tokens=256,
        write_back_blocks=1,
        prefill_buffer=16 * BLOCK,
        decode_buffer=17 * BLOCK,
        prefill_hbm=3 * 1024 * 256 if layerwise else 16 * BLOCK,
        decode_hbm=16 * BLOCK,
    )
    spec = spec_of(cluster)
    prompts = [prompt(60 + 88 * i, i) for i in range(10)]
    async with httpx.AsyncClient(timeout=120) as client:
        for ids in prompts:
            await complete(client, cluster, ids, 1)
        answers = await asyncio.gather(
            *(complete(client, cluster, prompts[i % 10], 100) for i in range(50))
        )
    for i, answer in enumerate(answers):
        assert answer.ids == oracle(spec, prompts[i % 10], 100)
        assert answer.finish == "length"
    assert sum(answer.cached_tokens > 0 for answer in answers) > 25
    cluster.until_idle()
