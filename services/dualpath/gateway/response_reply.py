"""An exchange over `/v1/responses`: the same work as for a chat, told in other words."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from starlette.types import Scope, Send

from dualpath.gateway import sse
from dualpath.gateway.answers import AnswerFormat, Json
from dualpath.gateway.errors import ApiError
from dualpath.gateway.flights import Flights
from dualpath.gateway.pieces import Piece
from dualpath.gateway.replies import Choice, Outcome, Reply, json_response, nothing
from dualpath.gateway.response_events import ResponseWriter


class ResponseReply(Reply):
    """`on_response` is told of the object once it is whole."""

    def __init__(
        self,
        flights: Flights,
        choice: Choice,
        form: AnswerFormat,
        threads: Executor,
        writer: ResponseWriter,
        *,
        on_response: Callable[[Json], None],
        stream: bool,
        explain: bool,
        on_end: Callable[[Outcome, ApiError | None], None],
    ) -> None:
        super().__init__(
            flights, [choice], form, threads, stream=stream, include_usage=True, explain=explain,
            on_end=on_end,
        )  # fmt: skip
        self._choice, self._writer, self._on_response = choice, writer, on_response

    async def _send_whole(self, scope: Scope, send: Send) -> None:
        async def take(piece: Piece) -> None:
            self._writer.add(piece)

        self._end(await self._serve(self._choice, take))
        await json_response(self._writer.response)(scope, nothing, send)

    async def _send_stream(self, send: Send) -> None:
        async def tell(piece: Piece) -> None:
            events = [] if self._started else self._writer.begin()
            await self._send_event(send, *events, *self._writer.add(piece))

        finish = await self._serve(self._choice, tell)
        await self._send_event(send, *self._end(finish))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self, finish: str) -> list[Json]:
        events = self._writer.end(finish, self._usage())
        self._on_response(self._writer.response)
        if self._explain:
            explained = {"dualpath": self._explanation()}
            self._writer.response |= explained
            events[-1]["response"] |= explained
        return events

    def _event_bytes(self, event: Json) -> bytes:
        return sse.named_event(event["type"], event)

    def _error_bytes(self, error: ApiError) -> bytes:
        told: dict[str, Any] = self._writer.error(error.body()["error"])
        return self._event_bytes(told)
