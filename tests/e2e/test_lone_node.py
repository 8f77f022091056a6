"""The only node of its kind dies and comes back: its requests wait for it."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import complete, oracle, prompt, spec_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
async def test_no_request_is_given_up_while_a_lone_node_is_started_again(
    start_own_cluster: StartCluster, name: str
) -> None:
    cluster = await asyncio.to_thread(start_own_cluster)
    spec = spec_of(cluster)
    async with httpx.AsyncClient(timeout=120) as client:

        async def ask(seed: int) -> None:
            ids = prompt(800, seed)
            answer = await complete(client, cluster, ids, 60)
            assert answer.ids == oracle(spec, ids, 60)

        await ask(0)
        requests = [asyncio.create_task(ask(seed)) for seed in range(1, 7)]
        cluster.kill(name)
        requests += [asyncio.create_task(ask(seed)) for seed in range(7, 13)]
        await asyncio.to_thread(cluster.restart, name)
        await asyncio.gather(*requests)
    await asyncio.to_thread(cluster.until_idle)
