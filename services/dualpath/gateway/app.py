"""The HTTP routes and how errors look on them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dualpath.gateway.body import Posted, read_object
from dualpath.gateway.errors import ApiError
from dualpath.gateway.flights import Flights
from dualpath.gateway.intake import Accepted, Intake
from dualpath.gateway.replies import Reply, json_response
from dualpath.gateway.watch import Watch
from dualpath.settings import Settings
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import CONTENT_TYPE

log = get_logger(__name__)

EXPLAIN = "X-DualPath-Explain"
"""With the value 1 an answer says how it was served."""

CLIENT_GONE = 499


class Gate(Protocol):
    """Whether the gateway takes requests now."""

    def check_open(self) -> None:
        """Raises ApiError(503) where it does not."""

    def healthy(self) -> tuple[bool, str]:
        """And a sentence."""


def make_app(
    settings: Settings, intake: Intake, flights: Flights, gate: Gate, watch: Watch
) -> FastAPI:
    app = FastAPI(title="DualPath", docs_url=None, redoc_url=None, openapi_url=None)
    created = int(time.time())

    async def serve(
        request: Request, accept: Callable[[Posted, float], Awaitable[Accepted]]
    ) -> Response:
        arrived_s = time.monotonic()
        gate.check_open()
        accepted = await accept(await read_object(request, settings.max_body), arrived_s)
        return Reply(
            flights,
            accepted.flight,
            accepted.form,
            accepted.text,
            stream=accepted.stream,
            include_usage=accepted.include_usage,
            explain=request.headers.get(EXPLAIN) == "1",
            on_end=watch.ended,
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await serve(request, intake.accept_chat)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await serve(request, intake.accept_completion)

    def model_card() -> dict[str, Any]:
        return {
            "id": intake.model,
            "object": "model",
            "created": created,
            "owned_by": "dualpath",
            "max_model_len": intake.max_context,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model_card()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        intake.check_model(name)
        return json_response(model_card())

    @app.get("/health")
    async def health() -> Response:
        well, sentence = gate.healthy()
        return json_response(
            {"status": "ok" if well else "unavailable", "detail": sentence}, 200 if well else 503
        )

    @app.get("/status")
    async def status() -> Response:
        return json_response(watch.metrics.status())

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(watch.metrics.render(), media_type=CONTENT_TYPE)

    _explain_errors(app, watch)
    return app


def _explain_errors(app: FastAPI, watch: Watch) -> None:
    """Every error leaves in OpenAI's shape."""

    def respond(error: ApiError, **headers: str) -> Response:
        watch.refused(error.status)
        return json_response(error.body(), error.status, error.headers() | headers)

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        # The rest of a body that was not read to its end must not be taken for the next request.
        return respond(error, **({"Connection": "close"} if error.status in (408, 413) else {}))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.url.path}"
        sentences = {404: f"there is no {place} here", 405: f"{place} is not allowed"}
        sentence = sentences.get(error.status_code, str(error.detail))
        codes = {404: "not_found", 405: "method_not_allowed"}
        return respond(
            ApiError(error.status_code, sentence, code=codes.get(error.status_code)),
            **(error.headers or {}),
        )

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, exc_info=error)
        return respond(ApiError(500, "the gateway failed; its log says more", code="internal"))
