"""The heartbeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest_asyncio
from tests.integration.gateway.cluster import FakeCluster, silence
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.gateway.registration import BEAT_S, Registration


@pytest_asyncio.fixture
async def scheduler(nats_server: NatsServer) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(await nats_server.connect("fake"), silence)
    await cluster.start()
    yield cluster
    await cluster.close()


async def test_a_gateway_that_stood_still_says_everything_again(
    nats_server: NatsServer, scheduler: FakeCluster
) -> None:
    forgotten = []
    bus = await nats_server.connect("gateway")
    registration = Registration(
        bus, "gateway-0", "model", lost_s=0.5, on_forgotten=lambda: forgotten.append(True)
    )
    beating = asyncio.create_task(registration.run())
    await until(registration.scheduler_answers)
    assert forgotten == []
    # The whole process stands still, as under SIGSTOP.
    time.sleep(BEAT_S + 1.0)  # noqa: ASYNC251
    await until(lambda: forgotten)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await bus.close()
