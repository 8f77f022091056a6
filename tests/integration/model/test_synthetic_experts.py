"""The AllToAlls of synthetic engines carry what the profile says, and notice engines out of step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.collectives import groups_of
from tests.support.transport import endpoints

from dualpath.lanes import Lane
from dualpath.model.api import ModelError
from dualpath.model.synthetic_experts import ExpertTraffic
from dualpath.transport.collectives import Group
from dualpath.transport.tcp import TcpEndpoint

TOKEN_BYTES = 3000


@asynccontextmanager
async def traffic_of(size: int) -> AsyncIterator[tuple[list[ExpertTraffic], list[Group]]]:
    async with endpoints() as make, groups_of(size, make) as groups:
        yield [ExpertTraffic(group, TOKEN_BYTES) for group in groups], groups


def sent(group: Group) -> int:
    endpoint = group._endpoint
    assert isinstance(endpoint, TcpEndpoint)
    return endpoint.nic.moved()[Lane.HIGH, "tx"]


async def test_each_engine_gives_the_others_their_part_of_its_tokens() -> None:
    async with traffic_of(3) as (engines, groups):
        tokens = [7, 0, 200]
        for _ in range(5):
            await asyncio.gather(*(e.layer(n) for e, n in zip(engines, tokens, strict=True)))
        assert [sent(group) for group in groups] == [5 * 2 * n * TOKEN_BYTES // 3 for n in tokens]


async def test_an_engine_out_of_step_is_found() -> None:
    async with traffic_of(2) as (engines, groups):
        await asyncio.gather(*(engine.layer(1) for engine in engines))
        # One begins to count anew, as if it had missed a layer.
        engines[1] = ExpertTraffic(groups[1], TOKEN_BYTES)
        failed = await asyncio.gather(
            *(engine.layer(1) for engine in engines), return_exceptions=True
        )
        assert all(isinstance(error, ModelError) for error in failed)
        assert all("out of step" in str(error) for error in failed)
