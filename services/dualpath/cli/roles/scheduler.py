"""The scheduler."""

from __future__ import annotations

import asyncio

from dualpath.cli.seat import Seat, until_stopped
from dualpath.cluster.record import Ready
from dualpath.model.spec import load_spec
from dualpath.scheduler.service import SchedulerService


async def serve_scheduler(seat: Seat, stop: asyncio.Event) -> None:
    settings = seat.settings
    spec = await asyncio.to_thread(load_spec, settings)
    async with seat.bus() as bus:
        service = SchedulerService(settings, bus, spec.fingerprint)
        try:
            await service.start()
            async with seat.operators_port(service.metrics, service.healthy) as http_port:
                seat.ready(Ready(http_port))
                await until_stopped(stop, service.wait())
        finally:
            await service.close()
