"""Shards in processes of their own, and stores that use them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dualpath.kvstore.shards import ShardStore, parse_shard
from dualpath.lanes.nic import PacedNic
from dualpath.transport.tcp import TcpEndpoint

SECRET = "of the tests"

PROGRAM = """
import asyncio, resource, sys
from pathlib import Path
from dualpath.settings import Settings
from dualpath.storage.service import run
from dualpath.telemetry.logs import configure_logging
from dualpath.telemetry.process import run_service

home, shard_id, port, file_bytes = sys.argv[1:]
if int(file_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
configure_logging(shard_id, fmt="console", level="info")
settings = Settings(home=Path(home), secret="of the tests", transfer_deadline_s=2.0)

def ready(shard):
    print(f"{shard_id}={shard.address.host}:{shard.address.port}", flush=True)

run_service(lambda stop: run(settings, shard_id, stop, ready=ready, port=int(port)))
"""


class ShardProcess:
    """One shard; `address` is its `ID=HOST:PORT`, kept over restarts."""

    def __init__(self, home: Path, shard_id: str, *, file_bytes: int = 0) -> None:
        self.shard_id = shard_id
        self.address = ""
        self.errors = ""
        self._home = home
        self._file_bytes = file_bytes
        self._process: asyncio.subprocess.Process | None = None

    @property
    def root(self) -> Path:
        return self._home / "store" / self.shard_id

    async def start(self) -> bool:
        """False where it ended instead; then `errors` says why."""
        port = self.address.rpartition(":")[2] or "0"
        arguments = [str(self._home), self.shard_id, port, str(self._file_bytes)]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            self.errors = (await self._process.communicate())[1].decode()
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
        self.errors = (await self._process.communicate())[1].decode()
        return self._process.returncode or 0

    def files(self) -> list[Path]:
        return sorted(self.root.glob("*-*/??/*.kv"))


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
    ) -> ShardStore:
        """A client of these shards. `rate` paces its NIC."""
        snic = TcpEndpoint(
            name,
            host="127.0.0.1",
            nic=PacedNic(f"{name}.nic", rate, quantum_bytes=16 * 1024),
            secret=SECRET.encode(),
            fingerprint=fingerprint,
            transfer_deadline_s=2.0,
        )
        self._stack.push_async_callback(snic.close)
        store = ShardStore(
            snic,
            [parse_shard(shard.address) for shard in shards],
            fingerprint=fingerprint,
            block_bytes=block_bytes,
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
    """Wait until a condition holds; fails after 20 s."""

    async def wait(condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(20):
            while True:
                holds = condition()
                if holds if isinstance(holds, bool) else await holds:
                    return
                await asyncio.sleep(0.01)

    return wait
