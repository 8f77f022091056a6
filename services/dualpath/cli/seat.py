"""What every process of a cluster is given, and what it opens around its service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dualpath.bus import Bus
from dualpath.cluster.record import Ready
from dualpath.settings import Settings
from dualpath.telemetry.http import Healthy, StatusServer
from dualpath.telemetry.metrics import Metrics


@dataclass(frozen=True)
class Seat:
    """A process's place in the cluster. `port` is the API's (gateways), `http_port` that of /metrics and
    /health (others; 0: any free one); `ready` is called once."""

    name: str
    settings: Settings
    port: int
    http_port: int
    ready: Callable[[Ready], None]

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        settings = self.settings
        assert settings.nats_url is not None, "checked at the start"
        bus = await Bus.connect(
            settings.nats_url,
            self.name,
            user=settings.nats_user,
            password=settings.nats_password,
        )
        try:
            yield bus
        finally:
            await bus.close()

    @asynccontextmanager
    async def operators_port(self, metrics: Metrics, healthy: Healthy) -> AsyncIterator[int]:
        """/metrics and /health on a port of their own; yields it."""
        server = StatusServer()
        port = await server.start(
            self.settings.host, self.http_port, metrics=metrics, healthy=healthy
        )
        try:
            yield port
        finally:
            await server.close()


async def until_stopped(stop: asyncio.Event, life: Coroutine[Any, Any, None]) -> bool:
    """Wait until `life` (a service's start, or the wait for its end) has ended or `stop` is set, which cancels
    it. Returns whether it has ended; raises what it raises."""
    stopping = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(life)
    try:
        await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            ended.result()
        return ended.done()
    finally:
        for task in (stopping, ended):
            task.cancel()
        await asyncio.gather(stopping, ended, return_exceptions=True)
