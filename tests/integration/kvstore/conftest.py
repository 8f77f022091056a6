"""Shards in this process, over real sockets, and stores that use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.back_ends import PATIENCE_S, be_patient

from dualpath.kvstore.shards import ShardStore
from dualpath.lanes.nic import PacedNic
from dualpath.storage.shard import StorageShard
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

SECRET = b"of the tests"


def endpoint(name: str, *, rate: float | None = None, port: int = 0) -> TcpEndpoint:
    return TcpEndpoint(
        name,
        host="127.0.0.1",
        nic=PacedNic(f"{name}.nic", rate, quantum_bytes=64 * 1024),
        secret=SECRET,
        transfer_deadline_s=PATIENCE_S,
        port=port,
    )


class Cluster:
    """Shards and stores of one test; all are closed at its end."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.stack = stack
        self.shards: list[StorageShard] = []

    async def shard(self, *, port: int = 0, staging_bytes: int = 64 << 20) -> StorageShard:
        name = f"storage-{len(self.shards)}"
        shard = StorageShard(
            name, self.root / name, endpoint(name, port=port), staging_bytes=staging_bytes
        )
        await shard.start()
        self.stack.push_async_callback(shard.close)
        self.shards.append(shard)
        return shard

    async def peer(self, name: str = "peer", *, rate: float | None = None) -> TcpEndpoint:
        """An endpoint that is not started."""
        made = endpoint(name, rate=rate)
        self.stack.push_async_callback(made.close)
        return made

    async def store(
        self,
        block_bytes: int = 10_000,
        *,
        name: str = "node",
        rate: float | None = None,
        shards: list[Address] | None = None,
        replicas: int = 1,
    ) -> ShardStore:
        """A client of `shards`, or of all. `rate` paces its NIC."""
        snic = await self.peer(name, rate=rate)
        addresses = shards or [
            Address(shard.shard_id, "", shard.address.host, shard.address.port)
            for shard in self.shards
        ]
        store = ShardStore(
            snic,
            addresses,
            fingerprint="model",
            block_bytes=block_bytes,
            replicas=replicas,
            match_deadline_s=PATIENCE_S,
        )
        be_patient(store)
        await snic.start(store.on_message)
        self.stack.push_async_callback(store.close)
        return store


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)
