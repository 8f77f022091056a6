"""compose/healthy.py against a real status server."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.compose import ROOT

from dualpath.telemetry.http import StatusServer
from dualpath.telemetry.metrics import Metrics

SCRIPT = ROOT / "compose" / "healthy.py"


async def check(*arguments: str, **environment: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-ISB", str(SCRIPT), *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | environment,
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


async def test_a_gateway_with_a_certificate_is_asked_over_https(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("gateway", host="10.1.2.3")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nthe gateway takes requests")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        port = str(server.sockets[0].getsockname()[1])
        told = {"DUALPATH_HTTP_CERTIFICATE": str(certificate)}
        assert await check(port, "/ready", "--api", **told) == (0, "the gateway takes requests")
        # The operators' port of all others is never HTTPS.
        assert (await check(port, "/ready", **told))[0] == 1
