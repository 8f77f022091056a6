"""Connections to one server, kept between requests, and requests over them."""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dualpath.loadgen.replay.connection import Connection
from dualpath.loadgen.replay.errors import ReplayError, TurnError
from dualpath.loadgen.replay.options import Target

_CONNECT_S = 30.0
_KEEP_S = 3.0
"""Servers close connections that are idle for 5 s (uvicorn) or longer."""
_SPARE_FILES = 64


class Pool:
    """At most `target.max_connections` exchanges at a time; others wait for theirs."""

    def __init__(self, target: Target) -> None:
        """Raises ReplayError for an address that is none."""
        self.base = target.url.rstrip("/")
        wrong = ReplayError(f"{target.url} is no address; write http://HOST:PORT/v1")
        try:
            parts = urlsplit(self.base)
            port = parts.port
        except ValueError as error:
            raise wrong from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise wrong
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._ssl = _context(target.ca_file) if parts.scheme == "https" else None
        self._path = parts.path
        headers = [
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            "Accept: text/event-stream, application/json",
            "User-Agent: dualpath-replay",
        ]
        if target.api_key:
            if not target.api_key.isascii() or not target.api_key.isprintable():
                raise ReplayError("an API key has printable ASCII characters only")
            headers.append(f"Authorization: Bearer {target.api_key}")
        if target.explain:
            headers.append("X-DualPath-Explain: 1")
        self._headers = "\r\n".join(headers)
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(_files(target.max_connections))
        self.opened = 0

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a request to a path below the base address."""
        head = (
            f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def open(self, count: int) -> None:
        """Have `count` connections ready. Raises TurnError."""
        made = await asyncio.gather(
            *(self._connect() for _ in range(count - len(self._idle))), return_exceptions=True
        )
        self._idle += [one for one in made if isinstance(one, Connection)]
        for one in made:
            if isinstance(one, BaseException):
                raise one

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One for an exchange. Raises TurnError."""
        async with self._places:
            connection = self._kept() or await self._connect()
            try:
                yield connection
            finally:
                if connection.reusable:
                    self._idle.append(connection)
                else:
                    connection.close()

    async def json(self, method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
        """The status and the decoded body of an answer that is not streamed (None where it is no JSON). Raises
        TurnError."""
        body = msgspec.json.encode(fields) if fields is not None else b""
        async with self.connection() as connection:
            status, answer = await connection.whole(self.request(method, path, body))
        try:
            return status, msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return status, None

    def _kept(self) -> Connection | None:
        # The one used last is the least likely to be closed.
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and time.monotonic() - connection.idle_since_s < _KEEP_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            what = str(error) or f"nothing for {_CONNECT_S:g} s"
            raise TurnError(
                "connect", f"no connection to {self.base}: {what}", retry_after_s=1.0
            ) from error
        self.opened += 1
        return connection

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        # Transports close in the loop's next turn.
        await asyncio.sleep(0)


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ReplayError(
            f"the certificates in {ca_file} cannot be read: {error.strerror}"
        ) from error


def _files(wanted: int) -> int:
    """How many connections the process may have, after raising its limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(min(wanted, soft - _SPARE_FILES), 1)
