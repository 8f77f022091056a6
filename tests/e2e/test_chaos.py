"""SIGKILL of the whole cluster under load, again and again: every restart is clean and every stored block right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import httpx
import pytest
from tests.support.client import complete, oracle, prompt, spec_of
from tests.support.cluster import LocalCluster, until

from dualpath.cluster.processes import alive
from dualpath.kvstore.survey import Survey

ROUNDS = 10


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_sigkills_of_everything_in_mid_load(tmp_path: Path) -> None:
    source = random.Random(11)
    agent = prompt(700, 999)
    stored = 0
    for round_number in range(ROUNDS):
        cluster = await asyncio.to_thread(
            LocalCluster, tmp_path, read_path="round-robin", decode=2, done_grace_s=60
        )
        try:
            spec = spec_of(cluster)
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await complete(client, cluster, agent, 8)
                assert answer.ids == oracle(spec, agent, 8)
                if round_number:
                    assert answer.cached_tokens == 640
                await load_then_kill(client, cluster, source, round_number)
        finally:
            kill_everything(cluster)
        blocks = await asyncio.to_thread(verify, tmp_path / "home" / "store")
        assert blocks > stored, "each round's load has stored something"
        stored = blocks


async def load_then_kill(
    client: httpx.AsyncClient, cluster: LocalCluster, source: random.Random, round_number: int
) -> None:
    """Twenty requests at once; everything dies while they run."""

    async def one(number: int) -> bool:
        ids = prompt(source.randrange(100, 3000), 1000 * round_number + number)
        try:
            # Short ones end soon, long ones are sure to run when everything dies.
            await complete(client, cluster, ids, 50 if number % 2 else 2000)
        except httpx.HTTPError:
            return False
        return True

    requests = [asyncio.create_task(one(number)) for number in range(20)]
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.5 * source.random())
    kill_everything(cluster)
    served = await asyncio.gather(*requests)
    assert not all(served), "the cluster died in mid-load"


def kill_everything(cluster: LocalCluster) -> None:
    """All processes at once, the supervisor too; none survives."""
    services = [service.process for service in cluster.record.services]
    for pid in [cluster.process.pid, *cluster.pids.values()]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    cluster.process.wait(10)
    until(lambda: not any(alive(process) for process in services), "every process is gone")


def verify(store: Path) -> int:
    """Read every block of every shard; each must be right. How many there are."""
    count = 0
    for root in sorted(store.iterdir()):
        with Survey(root) as survey:
            for block in survey.verify():
                assert block.right, f"{block.key.hex()} in {root}"
                count += 1
    return count
