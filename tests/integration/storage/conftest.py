"""Shards in processes of their own and in this one, and clients of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.stored import stored

from dualpath.kvstore.shards import MATCH_DEADLINE_S, ShardStore, parse_shard
from dualpath.lanes.nic import PacedNic
from dualpath.storage.shard import StorageShard
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.codec import Message, encode
from dualpath.wire.store import Ping, to_client
from dualpath.wire.types import Address, PoolUse

SECRET = "of the tests"

PROGRAM = """
import resource, sys
from pathlib import Path
from dualpath.lanes.nic import PacedNic
from dualpath.storage.shard import StorageShard
from dualpath.telemetry.logs import configure_logging
from dualpath.telemetry.process import run_service
from dualpath.transport.tcp import TcpEndpoint

root, shard_id, port, file_bytes = sys.argv[1:]
if int(file_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
configure_logging(shard_id, fmt="console", level="info")

async def main(stop):
    endpoint = TcpEndpoint(
        shard_id,
        host="127.0.0.1",
        nic=PacedNic("nic"),
        secret=b"of the tests",
        transfer_deadline_s=5.0,
        port=int(port),
    )
    shard = StorageShard(shard_id, Path(root), endpoint)
    await shard.start()
    try:
        print(f"{shard_id}={shard.address.host}:{shard.address.port}", flush=True)
        await stop.wait()
    finally:
        await shard.close()

run_service(main)
"""


class ShardProcess:
    """One shard; `address` is its `ID=HOST:PORT`, kept over restarts."""

    def __init__(self, home: Path, shard_id: str, *, file_bytes: int = 0) -> None:
        self.shard_id = shard_id
        self.address = ""
        self._log = home / f"{shard_id}.log"
        self._home = home
        self._file_bytes = file_bytes
        self._process: asyncio.subprocess.Process | None = None

    @property
    def errors(self) -> str:
        """What it logged, over all its lives."""
        return self._log.read_text()

    @property
    def root(self) -> Path:
        return self._home / "store" / self.shard_id

    async def start(self) -> bool:
        """False where it ended instead; then `errors` says why."""
        port = self.address.rpartition(":")[2] or "0"
        arguments = [str(self.root), self.shard_id, port, str(self._file_bytes)]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                PROGRAM,
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._process.wait()
            return False
        self.address = line.decode().strip()
        return True

    def tell(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Kill it (or ask it to stop) and wait until it is gone."""
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self.tell(number)
            if number is signal.SIGKILL:
                self.tell(signal.SIGCONT)
        await self._process.communicate()
        return self._process.returncode or 0

    def blocks(self) -> dict[bytes, tuple[Path, int]]:
        """File and offset of each block on its disk."""
        return {key: place for (_, key), place in stored(self.root).items()}


class Lab:
    """Shards and stores of one test; all end with it."""

    def __init__(self, home: Path, stack: AsyncExitStack) -> None:
        self._home = home
        self._stack = stack

    def prepare(self, shard_id: str = "storage-0", *, file_bytes: int = 0) -> ShardProcess:
        """A shard that has not been started; `file_bytes` limits its files, as a full disk would."""
        process = ShardProcess(self._home, shard_id, file_bytes=file_bytes)
        self._stack.push_async_callback(process.end)
        return process

    async def shard(self, shard_id: str = "storage-0", *, file_bytes: int = 0) -> ShardProcess:
        process = self.prepare(shard_id, file_bytes=file_bytes)
        assert await process.start(), process.errors
        return process

    async def store(
        self,
        *shards: ShardProcess,
        block_bytes: int = 10_000,
        name: str = "node",
        rate: float | None = None,
        fingerprint: str = "model",
        replicas: int = 1,
        transfer_deadline_s: float = 5.0,
        match_deadline_s: float = MATCH_DEADLINE_S,
    ) -> ShardStore:
        """A client of these shards. `rate` paces its NIC."""
        snic = TcpEndpoint(
            name,
            host="127.0.0.1",
            nic=PacedNic(f"{name}.nic", rate, quantum_bytes=16 * 1024),
            secret=SECRET.encode(),
            fingerprint=fingerprint,
            transfer_deadline_s=transfer_deadline_s,
        )
        self._stack.push_async_callback(snic.close)
        store = ShardStore(
            snic,
            [parse_shard(shard.address) for shard in shards],
            fingerprint=fingerprint,
            block_bytes=block_bytes,
            replicas=replicas,
            match_deadline_s=match_deadline_s,
        )
        await snic.start(store.on_message)
        self._stack.push_async_callback(store.close)
        return store


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool | Awaitable[bool]]], Awaitable[None]]:
    """Wait until a condition holds; fails after 60 s."""

    async def wait(condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(60):
            while True:
                holds = condition()
                if holds if isinstance(holds, bool) else await holds:
                    return
                await asyncio.sleep(0.01)

    return wait


class Client:
    """A peer of a shard that says what it likes."""

    def __init__(self, endpoint: TcpEndpoint, shard: Address) -> None:
        self.endpoint = endpoint
        self.shard = shard
        self.received: asyncio.Queue[Any] = asyncio.Queue()

    async def on_message(self, peer: Address, payload: bytes) -> None:
        self.shard = peer
        await self.received.put(to_client(payload))

    async def say(self, message: Message) -> None:
        await self.endpoint.send(self.shard, encode(message))

    async def ask(self, message: Message) -> Any:
        """The next message of the shard that is no ping."""
        await self.say(message)
        return await self.next()

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            while isinstance(message := await self.received.get(), Ping):
                pass
        return message


class Bench:
    """One shard in this process, and clients of it."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self._root = root
        self._stack = stack
        self.shard: StorageShard

    async def start(self, **options: Any) -> StorageShard:
        self.shard = StorageShard("storage-0", self._root, self._endpoint("storage-0"), **options)
        await self.shard.start()
        self._stack.push_async_callback(self.shard.close)
        return self.shard

    async def client(self, name: str = "client") -> Client:
        endpoint = self._endpoint(name)
        client = Client(endpoint, self.shard.address)
        await endpoint.start(client.on_message)
        self._stack.push_async_callback(endpoint.close)
        return client

    async def store(self, block_bytes: int, name: str) -> ShardStore:
        endpoint = self._endpoint(name)
        store = ShardStore(
            endpoint, [self.shard.address], fingerprint="model", block_bytes=block_bytes
        )
        await endpoint.start(store.on_message)
        self._stack.push_async_callback(endpoint.close)
        self._stack.push_async_callback(store.close)
        return store

    def pool(self, name: str) -> PoolUse:
        return next(pool for pool in self.shard.status().pools if pool.name == name)

    def idle(self) -> bool:
        """Nothing of the shard is in use."""
        return all(pool.used == pool.waiting == 0 for pool in self.shard.status().pools)

    @staticmethod
    def _endpoint(name: str) -> TcpEndpoint:
        return TcpEndpoint(
            name,
            host="127.0.0.1",
            nic=PacedNic(f"{name}.nic"),
            secret=SECRET.encode(),
        )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, stack)
