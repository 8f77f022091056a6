"""Engines that step together: answers stay right, and nobody waits for ever, whatever one of them does."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import Rig, Run, prompt, rig, right
from tests.support.wait import until

from dualpath.decode.node import DecodeNode
from dualpath.lanes import Lane
from dualpath.prefill.node import PrefillNode
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire import control
from dualpath.wire.types import ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("none", "prefill", "decode", "split")
TOKEN_BYTES = 512


def grouped(
    nats_server: NatsServer, home: Path, engines: int = 2, **settings: Any
) -> AbstractAsyncContextManager[Rig]:
    synthetic = {"all_to_all_bytes": TOKEN_BYTES, **settings.pop("synthetic", {})}
    return rig(nats_server, home, engines=engines, synthetic=synthetic, **settings)


def high_bytes(node: PrefillNode | DecodeNode) -> list[int]:
    """What each engine has sent on the high lane."""
    return [nic.moved()[Lane.HIGH, "tx"] for nic in node.cnics]


@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("engines", [2, 3])
async def test_answers_are_right_on_every_engine_and_path(
    nats_server: NatsServer, tmp_path: Path, engines: int, layerwise: bool
) -> None:
    async with grouped(nats_server, tmp_path, engines, chunk_tokens=300, layerwise=layerwise) as it:
        prompts = [prompt(40 + 97 * i, i) for i in range(6)]
        await asyncio.gather(
            *(it.generate(ids, 10, engine=i % engines) for i, ids in enumerate(prompts))
        )
        runs = await asyncio.gather(
            *(
                it.generate(prompts[i % 6], 20, PATHS[1 + i % 3], engine=i % engines)
                for i in range(12)
            )
        )
        for run in runs:
            assert run.tokens == right(it, run, 20)
            assert run.stats.hit_tokens == it.geometry.max_hit_blocks(len(run.ids)) * 64
        await it.idle()


async def test_each_layer_sends_its_tokens_bytes_on_the_high_lane(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with grouped(nats_server, tmp_path) as it:
        await it.generate(prompt(100, 1), 11)
        await it.idle()
        layers = it.geometry.n_layers
        # Engine 0 has all the work: half of each token's bytes go to engine 1, which has nothing to send.
        assert high_bytes(it.prefill) == [100 * layers * TOKEN_BYTES // 2, 0]
        assert high_bytes(it.decode) == [10 * layers * TOKEN_BYTES // 2, 0]


async def test_an_engine_that_idles_holds_up_nobody_and_steps_along(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with grouped(nats_server, tmp_path) as it:
        busy = [it.generate(prompt(200, i), 40, engine=1) for i in range(3)]
        for run in await asyncio.gather(*busy):
            assert run.tokens == right(it, run, 40)
        assert it.decode._engines[0].steps == 0
        # And comes in when it has work.
        both = await asyncio.gather(
            *(it.generate(prompt(300, 10 + engine), 30, engine=engine) for engine in (0, 1))
        )
        for run in both:
            assert run.tokens == right(it, run, 30)
        await it.idle()


async def abort(it: Rig, run: Run) -> None:
    for node in ("p0", "d0"):
        await it.tell(node, control.Abort(run.attempt, "the client is gone"))


@pytest.mark.parametrize("path", ["none", "split"])
async def test_a_cancelled_request_disturbs_no_other_engine(
    nats_server: NatsServer, tmp_path: Path, path: ReadPath
) -> None:
    source = random.Random(3)
    async with grouped(
        nats_server,
        tmp_path,
        chunk_tokens=300,
        cnic_bandwidth=30_000_000,
        snic_bandwidth=30_000_000,
    ) as it:
        ids = prompt(1500, 1)
        hits, own = (0, 0) if path == "none" else (23, 11)
        await it.generate(ids, 2)
        steady = asyncio.create_task(it.generate(prompt(700, 2), 150, engine=1))
        for _ in range(5):
            run = await it.begin(ids, Sampling(max_tokens=100, seed=0))
            await it.pair(run, path, hits, own)
            await asyncio.sleep(source.random() * 0.3)
            await abort(it, run)
        run = await steady
        assert run.tokens == right(it, run, 150)
        again = await it.generate(ids, 20, path)
        assert again.tokens == right(it, again, 20)
        await it.idle()


async def test_a_layer_that_never_arrives_costs_its_row_only(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with grouped(nats_server, tmp_path, transfer_deadline_s=0.3) as it:
        ids = prompt(900, 1)
        await it.generate(ids, 2)

        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        push, it.decode._push = it.decode._push, never  # type: ignore[method-assign,assignment]
        stuck = await it.begin(ids, Sampling(max_tokens=5, seed=0), engine=0)
        await it.pair(stuck, "decode", 14, 0)
        await asyncio.wait_for(stuck.prefilling.wait(), 60)
        other = await it.generate(prompt(400, 2), 20, engine=1)
        assert other.tokens == right(it, other, 20)
        await asyncio.wait_for(stuck.over.wait(), 60)
        assert stuck.lost is not None
        assert "did not arrive" in stuck.lost.reason
        await abort(it, stuck)
        it.decode._push = push  # type: ignore[method-assign]
        again = await it.generate(ids, 20, "decode")
        assert again.tokens == right(it, again, 20)
        await it.idle()


async def cut_in_a_collective(node: PrefillNode | DecodeNode) -> None:
    """Cut the link between the node's engines, as a network does, until that has struck a collective."""
    endpoint = node.cnic_endpoints[0]
    assert isinstance(endpoint, TcpEndpoint)
    await until(lambda: high_bytes(node) != [0, 0])
    groups = node.engine_group._groups
    async with asyncio.timeout(60):
        while all(group.failure is None for group in groups):
            for link in [link for link in endpoint._routes.links if link.lane is Lane.HIGH]:
                link.fail("cut on purpose")
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_after_a_collective_has_failed_the_group_forms_anew(
    nats_server: NatsServer, tmp_path: Path, role: str
) -> None:
    async with grouped(
        nats_server, tmp_path, chunk_tokens=128, cnic_bandwidth=20_000_000, quantum=8192
    ) as it:
        node = it.prefill if role == "prefill" else it.decode
        runs = [
            asyncio.create_task(it.generate(prompt(1000, i), 200, engine=i % 2)) for i in range(4)
        ]
        await cut_in_a_collective(node)
        ended = await asyncio.gather(*runs)
        assert any(run.lost is not None for run in ended)
        for run in ended:
            # Lost or not: what was streamed is right.
            assert run.tokens == right(it, run, 200)[: len(run.tokens)]
            if run.lost is not None:
                assert (run.lost.code, run.lost.retry) == ("transfer", True)
                assert "collective" in run.lost.reason
                await abort(it, run)
        await it.idle()
        for engine in (0, 1):
            run = await it.generate(prompt(500, 20 + engine), 20, engine=engine)
            assert run.tokens == right(it, run, 20)
        await it.idle()


async def test_a_peer_that_dies_costs_its_requests_and_no_forward(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with grouped(
        nats_server, tmp_path, cnic_bandwidth=20_000_000, transfer_deadline_s=1.0
    ) as it:
        lost = await it.begin(prompt(3000, 1), Sampling(max_tokens=10, seed=0), engine=0)
        await it.pair(lost, "none", 0, 0)
        await asyncio.wait_for(lost.prefilling.wait(), 60)
        # Engine 0 of the decode node is gone from the network; its requests on the prefill node fail.
        await it.decode.cnic_endpoints[0].close()
        await asyncio.wait_for(lost.over.wait(), 60)
        assert lost.lost is not None
        await abort(it, lost)
        # The prefill node's group goes on: engine 1 computes the first token of a request for the other engine.
        run = await it.generate(prompt(200, 2), 1, engine=1)
        assert run.tokens == right(it, run, 1)
        await it.idle()


async def test_the_groups_memory_is_free_when_the_nodes_have_closed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with grouped(nats_server, tmp_path) as it:
        await it.generate(prompt(100, 1), 5)
        endpoints = [*it.prefill.cnic_endpoints, *it.decode.cnic_endpoints]
        assert all(len(e._regions) for e in endpoints if isinstance(e, TcpEndpoint))
    for endpoint in endpoints:
        assert isinstance(endpoint, TcpEndpoint)
        assert not len(endpoint._regions)
