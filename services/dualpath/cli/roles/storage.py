"""A storage shard."""

from __future__ import annotations

import asyncio

from dualpath.cli.seat import Seat
from dualpath.cluster.record import Ready
from dualpath.kvstore.disk import StoreInUse
from dualpath.storage.shard import StorageShard
from dualpath.telemetry.metrics import Metrics
from dualpath.telemetry.process import ServiceError


async def serve_storage(seat: Seat, stop: asyncio.Event) -> None:
    settings = seat.settings
    nic, endpoint = seat.unpaced_endpoint()
    shard = StorageShard(
        seat.name,
        settings.home / "store" / seat.name,
        endpoint,
        nic=nic,
        fsync=settings.store_fsync,
    )
    metrics = Metrics("storage", seat.name)
    metrics.watch(shard.status)
    try:
        await shard.start()
    except StoreInUse as error:
        raise ServiceError(str(error)) from error
    try:
        async with seat.operators_port(metrics, lambda: (True, "shard serves")) as http_port:
            address = endpoint.address
            seat.ready(Ready(http_port, data=f"{address.host}:{address.port}"))
            await stop.wait()
    finally:
        await shard.close()
