"""A storage shard."""

from __future__ import annotations

import asyncio

from dualpath.cli.seat import Seat
from dualpath.cluster.record import Ready
from dualpath.kvstore.disk import DiskOptions, StoreInUse
from dualpath.kvstore.shards import parse_shard
from dualpath.lanes.build import nic_of
from dualpath.settings import Settings
from dualpath.storage.shard import StorageShard
from dualpath.telemetry.metrics import Metrics
from dualpath.telemetry.process import ServiceError
from dualpath.transport.making import make_endpoint


async def serve_storage(seat: Seat, stop: asyncio.Event) -> None:
    settings = seat.settings
    # A shard is no node: its NIC is not emulated, and it serves any model.
    nic = nic_of(settings, f"{seat.name}.nic")
    endpoint = make_endpoint(settings, seat.name, nic, port=_known_port(settings, seat.name))
    shard = StorageShard(
        seat.name,
        settings.home / "store" / seat.name,
        endpoint,
        nic=nic,
        options=DiskOptions(
            fsync=settings.store_fsync,
            sync_s=settings.store_sync_s,
            capacity_bytes=settings.store_capacity,
            ttl_s=settings.store_ttl_s,
            direct=settings.store_direct,
        ),
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


def _known_port(settings: Settings, name: str) -> int:
    """Where the others expect this shard: set by hand, or by its life before. 0: nobody knows it yet."""
    for text in settings.shard_addresses:
        shard = parse_shard(text)
        if shard.endpoint_id == name:
            return shard.port
    return 0
