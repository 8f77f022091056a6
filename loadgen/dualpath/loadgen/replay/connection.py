"""A kept HTTP/1.1 connection for streamed answers: few steps per event, times taken as bytes arrive.

General HTTP clients pass each chunk through tasks, queues and iterators, which costs several times the rest of a
client's work per token (`benchmarks/client_ceiling.py`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import httptools
import msgspec

from dualpath.loadgen.replay.errors import ClosedBeforeAnswer, TurnError
from dualpath.loadgen.replay.stream import AnswerStream, said_of

MAX_BODY_BYTES = 64 << 20
"""Of an answer that is not streamed, such as an error."""
_RETRIABLE = (429, 503)
_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 1.0, 60.0


class Connection(asyncio.Protocol):
    """One exchange at a time: `stream` or `whole`."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._parser: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._stream: AnswerStream | None = None
        self._body = bytearray()
        self._status = 0
        self._retry_after = b""
        self._now_s = 0.0
        self._used = False
        self._answered = False
        self._reusable = False
        self.idle_since_s = time.monotonic()

    # ── exchanges ──────────────────────────────────────────────────────────────────────────────────
    async def stream(self, request: bytes, answer: AnswerStream) -> None:
        """Send a request and feed what is streamed into `answer`, until its end. Raises TurnError; the connection
        can be used again only where `reusable` says so."""
        await self._exchange(request, answer)
        if self._status != 200:
            raise self._refusal()

    async def whole(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; its answer's status and body. Raises TurnError."""
        await self._exchange(request, None)
        return self._status, bytes(self._body)

    async def _exchange(self, request: bytes, answer: AnswerStream | None) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ClosedBeforeAnswer
        self._parser = httptools.HttpResponseParser(self)
        self._stream, self._status, self._retry_after = answer, 0, b""
        self._body.clear()
        self._answered = self._reusable = False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            self._waiter = self._stream = None
            self._used = True
            self.idle_since_s = time.monotonic()

    @property
    def reusable(self) -> bool:
        return self._reusable and self.alive

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Whatever is under way ends at the server too."""
        if self._transport is not None:
            self._transport.abort()

    def _refusal(self) -> TurnError:
        try:
            decoded = msgspec.json.decode(bytes(self._body))
            said = said_of(decoded.get("error", decoded))
        except (msgspec.DecodeError, AttributeError):
            said = bytes(self._body[:200]).decode(errors="replace") or "no reason given"
        retry_after_s = None
        if self._status in _RETRIABLE:
            try:
                retry_after_s = min(max(float(self._retry_after), 0.0), _MAX_RETRY_AFTER_S)
            except ValueError:
                retry_after_s = _RETRY_AFTER_S
        return TurnError(f"http-{self._status}", said, retry_after_s=retry_after_s)

    # ── asyncio.Protocol ───────────────────────────────────────────────────────────────────────────
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        if self._waiter is None:
            # Nothing was asked for.
            self.close()
            return
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # The parser wraps what its callbacks raise.
            cause = error.__context__
            self._fail(
                cause
                if isinstance(cause, TurnError)
                else TurnError("malformed", f"no HTTP: {error}")
            )

    def connection_lost(self, error: Exception | None) -> None:
        if self._used and not self._answered:
            self._fail(ClosedBeforeAnswer())
        else:
            why = f" ({error})" if error else ""
            self._fail(TurnError("broken", f"the connection ended within the answer{why}"))

    def _fail(self, error: TurnError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()

    # ── httptools ──────────────────────────────────────────────────────────────────────────────────
    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._stream is not None and self._status == 200:
            self._stream.feed(data, self._now_s)
        elif len(self._body) + len(data) > MAX_BODY_BYTES:
            raise TurnError("malformed", f"an answer is longer than {MAX_BODY_BYTES} bytes")
        else:
            self._body += data

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200:
            return
        self._reusable = bool(self._parser.should_keep_alive())
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
