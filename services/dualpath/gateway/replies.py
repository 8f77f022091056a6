"""One exchange with a client: from an accepted request to the last byte, or to the client's going away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dualpath.gateway import sse
from dualpath.gateway.answers import AnswerFormat, Json, Usage
from dualpath.gateway.errors import ApiError
from dualpath.gateway.flights import Flight, Flights
from dualpath.gateway.pieces import AnswerText
from dualpath.wire.types import FinishReason, Sampled

Outcome = Literal["done", "cancelled", "failed"]

_encoder = msgspec.json.Encoder()


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(_encoder.encode(content), status, headers, media_type="application/json")


class Reply(Response):
    """An ASGI response that owns its request: however it ends, the request has ended with it."""

    def __init__(
        self,
        flights: Flights,
        flight: Flight,
        form: AnswerFormat,
        text: AnswerText,
        *,
        stream: bool,
        include_usage: bool,
        explain: bool,
        on_end: Callable[[Flight, Outcome], None],
    ) -> None:
        super().__init__()
        self._flights, self._flight = flights, flight
        self._form, self._text = form, text
        self._stream, self._include_usage, self._explain = stream, include_usage, explain
        self._on_end = on_end
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError where no byte of an answer has been sent."""

        async def work() -> None:
            async with self._flights.open(self._flight):
                await (self._send_stream(send) if self._stream else self._send_whole(scope, send))

        outcome: Outcome = "failed"
        try:
            outcome = "done" if await _unless_gone(receive, work()) else "cancelled"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except ApiError as error:
            if not self._started:
                raise
            await send(
                {
                    "type": "http.response.body",
                    "body": sse.data_event(error.body()),
                    "more_body": False,
                }
            )
        finally:
            self._on_end(self._flight, outcome)

    # ── whole ──────────────────────────────────────────────────────────────────────────────────────
    async def _send_whole(self, scope: Scope, send: Send) -> None:
        tokens = []
        while (finish := self._flight.request.finish) is None:
            tokens += await self._more()
        body = self._form.whole([self._text.add(tokens, last=True)], finish, self._usage())
        if self._explain:
            body["dualpath"] = self._explanation()
        await json_response(body)(scope, _nothing, send)

    # ── stream ─────────────────────────────────────────────────────────────────────────────────────
    async def _send_stream(self, send: Send) -> None:
        first = True
        finish: FinishReason | None = None
        while finish is None:
            tokens = await self._more()
            finish = self._flight.request.finish
            piece = self._text.add(tokens, last=finish is not None)
            events = []
            if self._form.says_something(piece):
                events.append(self._form.chunk([piece], None, first=first))
                first = False
            if finish is not None:
                events += self._closing(finish, first)
            await self._send_events(send, events)
        await send({"type": "http.response.body", "body": sse.DONE, "more_body": False})

    def _closing(self, finish: FinishReason, first: bool) -> list[Json]:
        events = [self._form.chunk([], finish, first=first)]
        if self._include_usage:
            events.append(self._form.usage_chunk(self._usage()))
        if self._explain:
            events[-1]["dualpath"] = self._explanation()
        return events

    async def _send_events(self, send: Send, events: list[Json]) -> None:
        if not self._started:
            # Not before the first token: until then a failure can still be told by its status.
            self._started = True
            headers = [(k.lower().encode(), v.encode()) for k, v in sse.HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if events:
            body = b"".join(sse.data_event(event) for event in events)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    # ── figures ────────────────────────────────────────────────────────────────────────────────────
    async def _more(self) -> list[Sampled]:
        tokens = await self._flights.more(self._flight)
        if tokens:
            flight = self._flight
            flight.last_token_s = time.monotonic()
            flight.timings_s.setdefault("ttft", flight.last_token_s - flight.arrived_s)
        return tokens

    def _usage(self) -> Usage:
        request = self._flight.request
        return Usage(len(request.prompt), len(request.generated), request.cached_tokens)

    def _explanation(self) -> Json:
        request, stats = self._flight.request, self._flight.request.stats
        return {
            "request_id": request.request_id,
            "prefill_node": stats.prefill_node,
            "decode_node": stats.decode_node,
            "read_path": stats.read_path,
            "hit_tokens": stats.hit_tokens,
            "bytes_read": {"prefill": stats.prefill_bytes_read, "decode": stats.decode_bytes_read},
            "attempts": request.number,
            "timings_s": {
                phase: round(seconds, 6)
                for phase, seconds in {**self._flight.timings_s, **stats.timings_s}.items()
            },
        }


async def _nothing() -> Any:
    raise RuntimeError("a finished answer receives nothing")


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, or cancel it when the client disconnects. Returns whether it ended."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
