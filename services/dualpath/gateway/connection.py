"""uvicorn's HTTP/1.1 connection, with bounds on what comes before a body, and on clients that do not read: uvicorn
itself takes request lines and headers of any length, at any pace, and waits for its clients for ever. (Bodies are
bounded where they are read, `body.py`.)"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dualpath.gateway.errors import ApiError
from dualpath.gateway.replies import json_response

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 30.0
"""A connection whose request line and headers are not there after so long is closed."""
UNREAD_S = 60.0
"""So is one whose client takes nothing for so long of an answer that waits for it: what the answer held is free then,
and its request is cancelled. Until then no more than asyncio's high-water mark, 64 KiB, and one event waits here."""


class Connection(HttpToolsProtocol):
    """Counts and times each request's head. Between requests, uvicorn's keep-alive limit holds."""

    _in_head = True
    _heads = 0
    _head_bytes = 0
    _head_limit: asyncio.TimerHandle | None = None
    _read_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._free_head()
        self._free_read()
        super().connection_lost(exc)

    # ── what waits for the client ──────────────────────────────────────────────────────────────────
    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_read()

    def resume_writing(self) -> None:
        self._free_read()
        super().resume_writing()

    def _limit_read(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._read_limit = self.loop.call_later(UNREAD_S, self._unread, waiting)

    def _free_read(self) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()
            self._read_limit = None

    def _unread(self, waited: int) -> None:
        self._read_limit = None
        if self.transport.get_write_buffer_size() < waited:
            self._limit_read()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        began_in_head, heads = self._in_head, self._heads
        super().data_received(data)
        if self.transport.is_closing() or not self._in_head:
            return
        if began_in_head and heads == self._heads:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the request's headers are longer than {MAX_HEAD_BYTES} bytes")
        elif self._head_bytes and self._head_limit is None:
            self._limit_head()

    # ── the parser's events ────────────────────────────────────────────────────────────────────────
    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._heads += 1
        self._free_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    # ── limits ─────────────────────────────────────────────────────────────────────────────────────
    def _limit_head(self) -> None:
        self._head_limit = self.loop.call_later(HEAD_S, self._too_slow)

    def _free_head(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def _too_slow(self) -> None:
        self._head_limit = None
        if self._answering:
            # The next request's head has begun early; its time counts from the answer on.
            self._limit_head()
        elif self._head_bytes:
            self._refuse(408, f"the request's headers did not arrive within {HEAD_S:g} s")
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, sentence: str) -> None:
        self._free_head()
        if not self._answering:
            answer: Any = json_response(ApiError(status, sentence).body(), status)
            head = [f"HTTP/1.1 {status} Refused\r\nconnection: close\r\n".encode()]
            head += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
            self.transport.write(b"".join([*head, b"\r\n", answer.body]))
        self.transport.close()
