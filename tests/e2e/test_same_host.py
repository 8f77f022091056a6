"""Clusters of one host whose KV moves through shared memory, or through sockets: the same answers, byte by byte."""

from __future__ import annotations

import asyncio

import pytest
from tests.e2e.conftest import StartCluster
from tests.support.agents import Client, Reply, talk_all

from dualpath.model.spec import load_spec
from dualpath.settings import Settings
from dualpath.transport.samehost import available


@pytest.mark.slow
@pytest.mark.parametrize("same_host", ["shared-memory", "sockets"])
def test_agents_get_answers_in_which_each_byte_counts(
    start_own_cluster: StartCluster, same_host: str
) -> None:
    cluster = start_own_cluster(same_host=same_host, read_path="halves", decode=2)
    spec = load_spec(Settings(model="synthetic", home=cluster.home))

    async def talk() -> list[list[Reply]]:
        async with Client(cluster.base_url, cluster.model) as client:
            return await talk_all(client, agents=6, turns=4)

    replies = [reply for talk in asyncio.run(talk()) for reply in talk]
    assert [r.explain for r in replies if r.tokens != r.right_tokens(spec)] == []
    assert {r.explain["attempts"] for r in replies} == {1}
    cluster.until_idle()
    cluster.stop()
    shares = same_host == "shared-memory" and available()
    for role in ("prefill", "decode", "storage"):
        logs = [path.read_text() for path in (cluster.home / "logs").glob(f"{role}-*.log")]
        assert any("memory_shared" in log for log in logs) == shares, role
