"""A gateway: the OpenAI-compatible API."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dualpath.cli.seat import Seat, until_stopped
from dualpath.cluster.record import Ready
from dualpath.gateway import GatewayService
from dualpath.model.spec import load_spec
from dualpath.telemetry.process import keep_pauses_short

_POLL_S = 0.02


async def serve_gateway(seat: Seat, stop: asyncio.Event) -> None:
    settings = seat.settings
    spec = await asyncio.to_thread(load_spec, settings)
    async with seat.bus() as bus:
        service = GatewayService(settings, spec, bus, seat.name)
        try:
            port = await service.start(seat.port)
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            if await _healthy(service, stop):
                # /metrics and /health are at the API's own port.
                keep_pauses_short()
                scheme = "http" if settings.http_certificate is None else "https"
                seat.ready(Ready(port, url=f"{scheme}://{host}:{port}/v1"))
                await until_stopped(stop, service.wait())
        finally:
            await service.close()


async def _healthy(service: GatewayService, stop: asyncio.Event) -> bool:
    """Wait until the scheduler takes the gateway; until then requests would get 503. False: stopped before."""
    while not stop.is_set():
        if service.healthy()[0]:
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_S)
    return False
