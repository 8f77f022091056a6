"""Single processes, started as a person or a container engine does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.nats import NatsServer

from dualpath.model.prepare import prepare_model
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.codec import Message

WITHIN_S = 60.0


async def start(
    tmp_path: Path, server: NatsServer, role: str, *more: str
) -> asyncio.subprocess.Process:
    """One process on a home of its own, whose stderr is to be read."""
    await asyncio.to_thread(
        prepare_model, Settings(model="synthetic", home=tmp_path), lambda line: None
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith("DUALPATH_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dualpath.cli.main", "serve", role, "--name", f"{role}-0", *more),
        env={
            **clean,
            "DUALPATH_MODEL": "synthetic",
            "DUALPATH_HOME": str(tmp_path),
            "DUALPATH_NATS_URL": server.url,
            "DUALPATH_NATS_USER": server.user,
            "DUALPATH_NATS_PASSWORD": server.password,
            "DUALPATH_SECRET": "a secret",
            "DUALPATH_SHARD_ADDRESSES": '["storage-0=127.0.0.1:1"]',
            "DUALPATH_LOG_FORMAT": "json",
        },
        stderr=asyncio.subprocess.PIPE,
    )


async def test_a_node_that_waits_for_the_scheduler_says_so_and_stops_when_told_to(
    tmp_path: Path, nats_server: NatsServer, unused_tcp_port: int
) -> None:
    asked = asyncio.Event()

    async def never_answer(message: Message) -> None:
        asked.set()

    scheduler = await nats_server.connect("scheduler")
    await scheduler.serve(control.SCHEDULER, control.to_scheduler, never_answer)
    node = await start(tmp_path, nats_server, "decode", "--http-port", str(unused_tcp_port))
    try:
        async with asyncio.timeout(WITHIN_S), httpx.AsyncClient() as http:
            await asked.wait()
            health = await http.get(f"http://127.0.0.1:{unused_tcp_port}/health")
            assert (health.status_code, health.text) == (
                503,
                "decode node is not registered yet\n",
            )
            node.send_signal(signal.SIGTERM)
            assert await node.wait() == 0
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
        await scheduler.close()


@pytest.mark.parametrize("role", ["prefill", "storage"])
async def test_a_port_that_is_taken_is_told_in_one_sentence(
    tmp_path: Path, nats_server: NatsServer, role: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = await start(tmp_path, nats_server, role, "--http-port", port)
        async with asyncio.timeout(WITHIN_S):
            _, errors = await process.communicate()
    assert process.returncode == 1
    last = json.loads(errors.splitlines()[-1])
    assert last["event"] == "service failed"
    assert "address already in use" in last["reason"]
    assert b"Traceback" not in errors
