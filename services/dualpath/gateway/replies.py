"""One exchange with a client: from an accepted request to the last byte, or to the client's going away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dualpath.gateway import sse
from dualpath.gateway.answers import Answer, AnswerFormat, Json, Opening, Usage
from dualpath.gateway.breakdown import token_sources, ttft_parts
from dualpath.gateway.errors import ApiError, internal
from dualpath.gateway.flights import Flight, Flights
from dualpath.gateway.pieces import AnswerText, Piece
from dualpath.tasks import together
from dualpath.telemetry.logs import get_logger
from dualpath.wire.types import Sampled

log = get_logger(__name__)

Outcome = Literal["done", "cancelled", "failed"]
T = TypeVar("T")

_encoder = msgspec.json.Encoder()

_INLINE_LOGPROBS = 2000
"""So many are written out on the event loop: more would hold other clients' tokens up."""


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(_encoder.encode(content), status, headers, media_type="application/json")


@dataclass(frozen=True)
class Choice:
    """One of a request's answers: what is served for it, and how its tokens become text."""

    opening: Opening
    flight: Flight
    text: AnswerText
    again: bool = False
    """Its prompt is that of the choice before."""
    on_answer: Callable[[Choice], None] | None = None
    """Told that the answer is whole."""
    echoed: Callable[[], Piece] | None = None
    """The prompt as the client wants it back, with log-probabilities; known from the first token on."""


class Reply(Response):
    """An ASGI response that owns its request: however it ends, the request has ended with it."""

    def __init__(
        self,
        flights: Flights,
        choices: Sequence[Choice],
        form: AnswerFormat,
        threads: Executor,
        *,
        stream: bool,
        include_usage: bool,
        explain: bool,
        on_end: Callable[[Outcome, ApiError | None], None],
    ) -> None:
        super().__init__()
        self._flights, self._choices, self._form = flights, choices, form
        self._threads = threads
        self._stream, self._include_usage, self._explain = stream, include_usage, explain
        self._on_end = on_end
        self._started = False
        self._unfinished = len(choices)
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError where no byte of an answer has been sent."""
        work = self._send_stream(send) if self._stream else self._send_whole(scope, send)
        outcome: Outcome = "failed"
        told: ApiError | None = None
        try:
            outcome = "done" if await _unless_gone(receive, work) else "cancelled"
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except ApiError as error:
            told = error
            await self._end_with(error, send)
        except Exception as error:
            name = self._choices[0].flight.request.request_id
            told = internal(name)
            if not self._started:
                raise
            log.exception("request failed in its stream", request_id=name)
            await self._end_with(told, send, error)
        finally:
            self._on_end(outcome, told)

    async def _end_with(self, error: ApiError, send: Send, cause: Exception | None = None) -> None:
        """Tell the client what went wrong as the stream's last event; raise it where nothing was sent yet."""
        error.logged = True
        if not self._started:
            raise error from cause
        event = self._error_bytes(error)
        await send({"type": "http.response.body", "body": event, "more_body": False})

    def _event_bytes(self, event: Json) -> bytes:
        return sse.data_event(event)

    def _error_bytes(self, error: ApiError) -> bytes:
        return sse.data_event(error.body())

    # ── whole ──────────────────────────────────────────────────────────────────────────────────────
    async def _send_whole(self, scope: Scope, send: Send) -> None:
        answers = await together([self._whole(choice) for choice in self._choices])
        pieces = [answer.piece for answer in answers]
        body = await self._written(pieces, lambda: self._form.whole(answers, self._usage()))
        if self._explain:
            body["dualpath"] = self._explanation()
        await json_response(body)(scope, nothing, send)

    async def _whole(self, choice: Choice) -> Answer:
        pieces: list[Piece] = []

        async def take(piece: Piece) -> None:
            pieces.append(piece)

        finish = await self._serve(choice, take)
        return Answer(choice.opening, Piece.joined(pieces), finish)

    # ── stream ─────────────────────────────────────────────────────────────────────────────────────
    async def _send_stream(self, send: Send) -> None:
        closings = await together([self._stream_choice(choice, send) for choice in self._choices])
        events = [event for event in closings if event is not None]
        if self._include_usage:
            events.append(self._form.usage_chunk(self._usage()))
        if self._explain:
            events[-1]["dualpath"] = self._explanation()
        await self._send_event(send, *events)
        await send({"type": "http.response.body", "body": sse.DONE, "more_body": False})

    async def _stream_choice(self, choice: Choice, send: Send) -> Json | None:
        """Sends all chunks of the choice, but returns the very last one of all choices."""
        opening, first = choice.opening, True

        async def tell(piece: Piece) -> None:
            nonlocal first
            for part in piece.apart():
                if self._form.says_something(opening, part):
                    write = partial(self._form.chunk, opening, part, None, first=first)
                    chunk = await self._written([part], write)
                    await self._send_event(send, chunk)
                    first = False

        finish = await self._serve(choice, tell)
        closing = self._form.chunk(opening, Piece(), finish, first=first)
        self._unfinished -= 1
        if not self._unfinished:
            return closing
        await self._send_event(send, closing)
        return None

    async def _send_event(self, send: Send, *events: Json) -> None:
        async with self._sending:
            if not self._started:
                # Not before the first token: until then a failure can still be told by its status.
                self._started = True
                headers = [(k.lower().encode(), v.encode()) for k, v in sse.HEADERS.items()]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = b"".join(map(self._event_bytes, events))
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _written(self, pieces: Sequence[Piece], write: Callable[[], Json]) -> Json:
        """What `write` makes of `pieces`; in a thread where they have many log-probabilities."""
        each = 0 if self._form.logprobs is None else 1 + self._form.logprobs
        count = each * sum(len(piece.prompt) + len(piece.tokens) for piece in pieces)
        return write() if count <= _INLINE_LOGPROBS else await self._beside(write)

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # ── a choice ───────────────────────────────────────────────────────────────────────────────────
    async def _serve(
        self, choice: Choice, tell: Callable[[Piece], Coroutine[Any, Any, None]]
    ) -> str:
        """Hold the choice's request from its start to its end, and hand on its pieces; why it ended."""
        flight, text, echoed = choice.flight, choice.text, choice.echoed
        async with self._flights.open(flight):
            while True:
                tokens = await self._more(flight)
                finish = flight.request.finish
                if echoed is not None:
                    await tell(await self._beside(echoed))
                    echoed = None
                piece = text.add(tokens, last=finish is not None)
                await tell(piece)
                if text.stopped:
                    await self._flights.stop_after(flight, text.tokens)
                    finish = "stop"
                if finish is not None:
                    if choice.on_answer is not None:
                        choice.on_answer(choice)
                    return text.reason(finish)

    async def _more(self, flight: Flight) -> list[Sampled]:
        tokens = await self._flights.more(flight)
        if tokens:
            flight.last_token_s = time.monotonic()
            if "ttft" not in flight.timings_s:
                self._note_first(flight)
        return tokens

    def _note_first(self, flight: Flight) -> None:
        own_s, stats = flight.timings_s, flight.request.stats
        own_s["ttft"] = flight.last_token_s - flight.arrived_s
        flight.parts_s = ttft_parts(own_s, stats.timings_s, own_s["ttft"])

    # ── figures ────────────────────────────────────────────────────────────────────────────────────
    def _usage(self) -> Usage:
        """A prompt counts once, however many answers it has, and so do those of its tokens that were read."""
        first = [choice.flight.request for choice in self._choices if not choice.again]
        return Usage(
            sum(len(request.prompt) for request in first),
            sum(choice.text.tokens for choice in self._choices),
            sum(request.cached_tokens for request in first),
        )

    def _explanation(self) -> Json:
        """Of the first choice."""
        flight = self._choices[0].flight
        request, stats = flight.request, flight.request.stats
        return {
            "request_id": request.request_id,
            "prefill_node": stats.prefill_node,
            "decode_node": stats.decode_node,
            "read_path": stats.read_path,
            "hit_tokens": stats.hit_tokens,
            "bytes_read": {"prefill": stats.prefill_bytes_read, "decode": stats.decode_bytes_read},
            "hot_tokens": {"prefill": stats.prefill_hot_tokens, "decode": stats.decode_hot_tokens},
            "prompt_tokens": token_sources(request.first_stats, len(request.prompt)),
            "attempts": request.number,
            "earlier_answers": {
                "known": len(flight.recall.known),
                "unknown": flight.recall.unknown,
                "changed": flight.recall.changed,
            },
            "timings_s": {
                phase: round(seconds, 6)
                for phase, seconds in {**flight.timings_s, **stats.timings_s}.items()
            },
            "ttft_s": {part: round(seconds, 6) for part, seconds in flight.parts_s.items()},
        }


async def nothing() -> Any:
    """ASGI's `receive` where nothing may come."""
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
