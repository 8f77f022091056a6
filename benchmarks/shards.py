"""Shards in processes of their own, and clients of them, for the benchmarks of the store."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from dualpath.kvstore.disk import DiskOptions
from dualpath.kvstore.shards import ShardStore
from dualpath.lanes import PacedNic
from dualpath.storage.shard import StorageShard
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

SECRET = b"benchmark"
FINGERPRINT = "benchmark"


@dataclass(frozen=True)
class Running:
    """A shard in its process."""

    address: Address
    pid: int

    def memory_bytes(self, what: str = "VmRSS") -> int:
        """`VmRSS`: at present; `VmHWM`: at most so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(f"{what}:"))
        return int(line.split()[1]) * 1024

    def cpu_s(self) -> float:
        """CPU that the process has spent, in user code and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _endpoint(name: str) -> TcpEndpoint:
    return TcpEndpoint(
        name, host="127.0.0.1", nic=PacedNic(f"{name}.nic"), secret=SECRET, transfer_deadline_s=30
    )


def _serve(shard_id: str, root: Path, options: DiskOptions, pipe: Connection) -> None:
    configure_logging(shard_id, fmt="console", level="warning")

    async def serve() -> None:
        shard = StorageShard(shard_id, root, _endpoint(shard_id), options=options)
        await shard.start()
        try:
            pipe.send(shard.address)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        finally:
            await shard.close()

    uvloop.run(serve())


@contextmanager
def shard(shard_id: str, root: Path, options: DiskOptions) -> Iterator[Running]:
    """A shard on `root`, stopped at the end."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(shard_id, root, options, theirs)
    )
    process.start()
    try:
        address: Address = ours.recv()
        assert process.pid is not None
        yield Running(address, process.pid)
        ours.send(None)
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


@asynccontextmanager
async def client(
    shards: list[Running], block_bytes: int, name: str = "client"
) -> AsyncIterator[ShardStore]:
    endpoint = _endpoint(name)
    addresses = [
        Address(one.address.endpoint_id, "", one.address.host, one.address.port) for one in shards
    ]
    store = ShardStore(endpoint, addresses, fingerprint=FINGERPRINT, block_bytes=block_bytes)
    await endpoint.start(store.on_message)
    try:
        yield store
    finally:
        await store.close()
        await endpoint.close()


def slot_files(root: Path) -> list[Path]:
    return sorted(root.glob("*-*/*.slots"))


def drop_from_cache(files: list[Path]) -> None:
    """Have the kernel forget the files' pages."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
