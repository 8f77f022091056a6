"""compose/healthy.py against a real status server."""

from __future__ import annotations

import asyncio
import socket
import sys

from tests.support.compose import ROOT

from dualpath.telemetry.http import StatusServer
from dualpath.telemetry.metrics import Metrics

SCRIPT = ROOT / "compose" / "healthy.py"


async def check(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-ISB", str(SCRIPT), *arguments, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode().strip()


async def test_its_exit_code_and_words_are_the_processs() -> None:
    answer = (True, "shard serves")
    server = StatusServer()
    port = await server.start(
        "127.0.0.1", metrics=Metrics("storage", "storage-0"), healthy=lambda: answer
    )
    try:
        assert await check(str(port)) == (0, "shard serves")
        answer = (False, "node has lost NATS")
        assert await check(str(port)) == (1, "node has lost NATS")
        assert await check(str(port), "--alive") == (0, "node has lost NATS")
        status, _ = await check(str(port), "/nothing")
        assert status == 1
    finally:
        await server.close()


async def test_nobody_there_is_unhealthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    status, words = await check(str(port), "--alive")
    assert status == 1
    assert f"no answer at port {port}" in words
