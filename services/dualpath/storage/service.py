"""The process of a storage shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dualpath.kvstore.disk import StoreInUse
from dualpath.lanes.nic import PacedNic
from dualpath.settings import Settings
from dualpath.storage.shard import StorageShard
from dualpath.telemetry.process import ServiceError
from dualpath.transport.tcp import TcpEndpoint


def make_shard(settings: Settings, shard_id: str, port: int = 0) -> StorageShard:
    """The shard of this name, with its blocks under `home/store/<shard_id>`, at `port` or any free one.

    Its NIC is not paced: what the emulated cluster is short of are the nodes' storage NICs (paper §7).
    It serves every fingerprint, each in a namespace of its own.
    """
    nic = PacedNic(f"{shard_id}.nic", quantum_bytes=settings.quantum)
    endpoint = TcpEndpoint(
        shard_id,
        host=settings.host,
        nic=nic,
        secret=(settings.secret or "").encode(),
        transfer_deadline_s=settings.transfer_deadline_s,
        port=port,
    )
    return StorageShard(
        shard_id,
        settings.home / "store" / shard_id,
        endpoint,
        nic=nic,
        fsync=settings.store_fsync,
    )


async def run(
    settings: Settings,
    shard_id: str,
    stop: asyncio.Event,
    *,
    ready: Callable[[StorageShard], None],
    port: int = 0,
) -> None:
    """Serve until `stop` is set or the task is cancelled; `ready` is called once clients can connect.

    Raises ServiceError where another process has the directory, or where it or the port is unusable.
    """
    shard = make_shard(settings, shard_id, port)
    try:
        await shard.start()
    except StoreInUse as error:
        raise ServiceError(str(error)) from error
    except OSError as error:
        raise ServiceError(f"storage shard {shard_id} cannot start: {error}") from error
    try:
        ready(shard)
        await stop.wait()
    finally:
        await shard.close()
