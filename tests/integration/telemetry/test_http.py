from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest_asyncio

from dualpath.telemetry.http import StatusServer
from dualpath.telemetry.metrics import Metrics
from dualpath.wire.types import NodeStatus, PoolUse


class Served:
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.port = 0
        self.well = True

    async def get(self, path: str, method: str = "GET") -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.request(method, f"http://127.0.0.1:{self.port}{path}")


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    server, metrics = StatusServer(), Metrics("decode", "decode-0")
    metrics.tokens_generated.inc(7)
    result = Served(metrics)
    result.port = await server.start(
        "127.0.0.1",
        metrics=metrics,
        healthy=lambda: (result.well, "serving" if result.well else "the bus is away"),
    )
    yield result
    await server.close()


async def test_metrics_and_health_are_served(served: Served) -> None:
    answer = await served.get("/metrics?x=1")
    assert answer.status_code == 200
    assert "dualpath_tokens_generated_total 7.0" in answer.text
    assert (await served.get("/health")).text == "serving\n"
    served.well = False
    answer = await served.get("/health")
    assert (answer.status_code, answer.text) == (503, "the bus is away\n")


async def test_the_status_is_what_the_metrics_watch(served: Served) -> None:
    status = NodeStatus(pools=(PoolUse("de_slots", 3, 10, 2),), counters={"steps": 4})
    assert (await served.get("/status")).content == msgspec.json.encode(NodeStatus())
    served.metrics.watch(lambda: status)
    answer = await served.get("/status")
    assert answer.headers["content-type"] == "application/json"
    assert msgspec.json.decode(answer.content, type=NodeStatus) == status


async def test_other_paths_and_methods_are_refused(served: Served) -> None:
    assert (await served.get("/")).status_code == 404
    assert (await served.get("/metrics", "POST")).status_code == 405
    head = await served.get("/metrics", "HEAD")
    assert (head.status_code, head.content) == (200, b"")


async def test_oversized_and_broken_requests_end_and_others_are_served(served: Served) -> None:
    for garbage in (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20_000, b"\x00\xff\r\n\r\n", b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(garbage)
        writer.write_eof()
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert b" 200 " not in answer
        writer.close()
    assert (await served.get("/health")).status_code == 200


async def test_close_ends_open_connections() -> None:
    server = StatusServer()
    port = await server.start(
        "127.0.0.1", metrics=Metrics("x", "x"), healthy=lambda: (True, "serving")
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /hea")
    await writer.drain()
    await server.close()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_close_ends_a_connection_that_was_accepted_in_the_same_turn() -> None:
    class Accepting(StatusServer):
        def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            super()._accept(reader, writer)
            for task in self._tasks:
                task.cancel()

    server = Accepting()
    port = await server.start(
        "127.0.0.1", metrics=Metrics("x", "x"), healthy=lambda: (True, "serving")
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await server.close()
