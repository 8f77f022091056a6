"""The port that every process has for operators: GET /metrics, /health and /status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import msgspec

from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import CONTENT_TYPE, Metrics

log = get_logger(__name__)

_MAX_HEAD_BYTES = 8192
_MAX_CONNECTIONS = 32
_CONNECTION_S = 5.0

Healthy = Callable[[], tuple[bool, str]]
"""Is the process well, and a sentence about it."""


class StatusServer:
    """A few lines of HTTP/1.1: one GET per connection, of bounded size, number and duration."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int = 0, *, metrics: Metrics, healthy: Healthy) -> int:
        """Listen at `host`; port 0 takes a free one. Returns the port. Raises OSError if it is taken.

        /status is the NodeStatus that `metrics` watch, as JSON.
        """
        self._metrics, self._healthy = metrics, healthy
        self._server = await asyncio.start_server(self._accept, host, port, limit=_MAX_HEAD_BYTES)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def close(self) -> None:
        """Stop listening and end the connections that are open."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._connection(reader, writer), name="status-connection")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, writer))

    def _ended(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        # Here, for one that is cancelled before its first step closes nothing itself.
        writer.close()
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("status request failed", exc_info=error)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECTION_S):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            # A client that is slow or gone gets nothing.
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status, kind, body = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "text/plain", b""
            method = "GET"
        else:
            method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
            status, kind, body = self._answer(method, rest.partition(" ")[0])
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        writer.write_eof()
        # Until the client closes: closing first could reset what it has not read.
        await reader.read(1)

    def _answer(self, method: str, target: str) -> tuple[HTTPStatus, str, bytes]:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"use GET\n"
        match target.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self._metrics.render()
            case "/status":
                body = msgspec.json.encode(self._metrics.status())
                return HTTPStatus.OK, "application/json", body
            case "/health":
                well, sentence = self._healthy()
                status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                return status, "text/plain; charset=utf-8", f"{sentence}\n".encode()
            case _:
                return (
                    HTTPStatus.NOT_FOUND,
                    "text/plain",
                    b"there are /metrics, /health and /status\n",
                )
