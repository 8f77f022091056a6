"""Gateways stand side by side: when one is killed, the other's clients notice nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import oracle, prompt, spec_of
from tests.support.cluster import LocalCluster, until

TOKENS = 300


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster) -> LocalCluster:
    return start_cluster(gateways=2, shards=1, node_lost_s=5.0)


class Asked:
    """A stream of TOKENS tokens from one gateway."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str, ids: list[int]) -> None:
        self.ids: list[int] = []
        self.attempts = 0
        self.finish: str | None = None
        body = {
            "model": model, "prompt": ids, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "stream": True,
        }  # fmt: skip
        self.task = asyncio.create_task(self._read(http, f"{url}/completions", body))

    async def _read(self, http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
        headers = {"X-DualPath-Explain": "1"}
        async with http.stream("POST", url, json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    self.ids += choice["token_ids"]
                    self.finish = choice["finish_reason"] or self.finish
                self.attempts = event.get("dualpath", {}).get("attempts", self.attempts)

    async def until_begun(self) -> None:
        while len(self.ids) < 3:
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_when_one_gateway_is_killed_the_others_clients_notice_nothing(
    cluster: LocalCluster,
) -> None:
    spec = spec_of(cluster)
    doomed, other = cluster.base_urls
    async with httpx.AsyncClient(timeout=90) as http:
        prompts = [prompt(300, seed) for seed in range(8)]
        kept = [Asked(http, other, cluster.model, ids) for ids in prompts[:4]]
        lost = [Asked(http, doomed, cluster.model, ids) for ids in prompts[4:]]
        await asyncio.gather(*(asked.until_begun() for asked in (*kept, *lost)))
        cluster.kill("gateway-0")
        ended = await asyncio.gather(*(asked.task for asked in lost), return_exceptions=True)
        assert all(isinstance(end, httpx.HTTPError) for end in ended)
        late = [Asked(http, other, cluster.model, ids) for ids in prompts[4:]]
        await asyncio.gather(*(asked.task for asked in (*kept, *late)))
    for asked, ids in zip((*kept, *late), prompts, strict=True):
        assert (asked.finish, asked.attempts) == ("length", 1)
        assert asked.ids == oracle(spec, ids, TOKENS)
    # What the dead gateway's clients had is given back, though nobody cancelled it or took it.
    # The scheduler goes on telling it, for a minute: it might only have been away.
    await asyncio.to_thread(
        until, lambda: set(cluster.in_use()) <= {"scheduler.outbox"}, "nothing is held"
    )
