"""Groups of engines in whole clusters: when a node dies, the groups of the others step on, and no answer changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.support.client import Answer, complete, oracle, prompt, spec_of
from tests.support.cluster import LocalCluster, until

TOKENS = 120


@pytest.mark.slow
async def test_answers_stay_right_when_nodes_of_grouped_engines_die(tmp_path: Path) -> None:
    cluster = await asyncio.to_thread(
        LocalCluster,
        tmp_path,
        prefill=2,
        decode=2,
        engines=2,
        read_path="round-robin",
        cnic_bandwidth="100MB/s",
        node_lost_s=1.0,
        transfer_deadline_s=1.0,
        synthetic={"all_to_all_bytes": 2048, "decode_step_s": 0.02},
    )
    try:
        prompts = [prompt(100 + 300 * number, number) for number in range(10)]
        async with httpx.AsyncClient(timeout=120) as client:

            async def all_of_them(victim: str) -> list[Answer]:
                """Every prompt at once; `victim` dies once tokens flow."""
                asked = [
                    asyncio.create_task(complete(client, cluster, ids, TOKENS)) for ids in prompts
                ]
                await asyncio.to_thread(until_steps, cluster)
                await asyncio.to_thread(cluster.kill, victim)
                return await asyncio.gather(*asked)

            attempts = 0
            for victim in ("prefill-1", "decode-0"):
                for ids, answer in zip(prompts, await all_of_them(victim), strict=True):
                    assert answer.ids == oracle(spec_of(cluster), ids, TOKENS)
                    attempts = max(attempts, answer.explain["attempts"])
            assert attempts > 1, "somebody was on a node that died"
        await asyncio.to_thread(cluster.until_idle)
    finally:
        await asyncio.to_thread(cluster.stop)


def steps(cluster: LocalCluster, node: str) -> float:
    """What the node has counted so far."""
    url = f"http://127.0.0.1:{cluster.http_ports[node]}/metrics"
    for line in httpx.get(url, trust_env=False).text.splitlines():
        if line.startswith('dualpath_events_total{event="steps"}'):
            return float(line.split()[-1])
    raise AssertionError(f"{node} does not count its steps")


def until_steps(cluster: LocalCluster) -> None:
    """Wait until both decode nodes have made steps since this was called."""
    for node in ("decode-0", "decode-1"):
        before = steps(cluster, node)
        until(lambda node=node, before=before: steps(cluster, node) > before, f"{node} steps")  # type: ignore[misc]
