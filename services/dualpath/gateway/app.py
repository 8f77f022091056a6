"""The HTTP routes and how errors look on them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dualpath.gateway.admission import Admission, Place
from dualpath.gateway.body import Posted, read_object, wish_deadline
from dualpath.gateway.docs_page import docs_page
from dualpath.gateway.errors import ApiError, internal
from dualpath.gateway.flights import Flights
from dualpath.gateway.intake import Accepted, Intake
from dualpath.gateway.keys import ApiKeys, Tenant
from dualpath.gateway.openapi import errors, posts, schemas
from dualpath.gateway.replies import Choice, Outcome, Reply, json_response
from dualpath.gateway.request_id import RequestId
from dualpath.gateway.response_reply import ResponseReply
from dualpath.gateway.responses import ResponsesBody
from dualpath.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from dualpath.gateway.watch import Watch
from dualpath.settings import Settings
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import CONTENT_TYPE

log = get_logger(__name__)

EXPLAIN = "X-DualPath-Explain"
"""With the value 1 an answer says how it was served."""

CLIENT_GONE = 499


class _Asked(Protocol):
    @property
    def choices(self) -> Sequence[Choice]: ...


A = TypeVar("A", bound=_Asked)


@dataclass
class _Entry:
    """What a request holds of the gateway while it is served."""

    span: tracing.Span
    place: Place | None = None

    def end(self, generated_tokens: int = 0) -> None:
        self.span.end()
        if self.place is not None:
            self.place.give_back(generated_tokens, time.monotonic())


class Gate(Protocol):
    """Whether the gateway takes requests now."""

    def check_open(self) -> None:
        """Raises ApiError(503) where it does not."""

    def healthy(self) -> tuple[bool, str]:
        """And a sentence."""


def make_app(
    settings: Settings,
    intake: Intake,
    flights: Flights,
    gate: Gate,
    watch: Watch,
    admission: Admission,
) -> FastAPI:
    app = FastAPI(title="DualPath", version=version("dualpath"), docs_url=None, redoc_url=None)
    created = int(time.time())
    keys = ApiKeys(settings.api_keys)

    def who(request: Request) -> Tenant:
        return keys.tenant(request.headers.get("Authorization"))

    async def admit(
        request: Request, accept: Callable[[Posted, Tenant, float], Awaitable[A]]
    ) -> tuple[A, _Entry]:
        """What is to be served, and what it holds until it has been."""
        arrived_s = time.monotonic()
        span = tracing.start(
            "gateway.request", request.headers.get(tracing.HEADER), path=request.url.path
        )
        # Each request is served by a task of its own.
        tracing.enter(span.traceparent)
        entry = _Entry(span)
        try:
            tenant = who(request)
            gate.check_open()
            entry.place = admission.take(tenant.name, arrived_s)
            body = await read_object(request, settings.max_body)
            wish_deadline(request.headers, body)
            accepted = await accept(body, tenant, arrived_s)
            computed = [
                choice.flight.request
                for choice in accepted.choices
                if not choice.again or choice.echoed is not None
            ]
            entry.place.charge(sum(len(each.prompt) for each in computed), time.monotonic())
        except BaseException as error:
            span.fail(str(error))
            entry.end()
            raise
        return accepted, entry

    def ended(
        entry: _Entry, choices: Sequence[Choice], outcome: Outcome, error: ApiError | None
    ) -> None:
        entry.end(sum(len(choice.flight.request.generated) for choice in choices))
        for choice in choices:
            watch.ended(choice.flight, outcome, error)

    async def serve(
        request: Request, accept: Callable[[Posted, Tenant, float], Awaitable[Accepted]]
    ) -> Response:
        accepted, entry = await admit(request, accept)
        return Reply(
            flights,
            accepted.choices,
            accepted.form,
            intake.threads,
            stream=accepted.stream,
            include_usage=accepted.include_usage,
            explain=request.headers.get(EXPLAIN) == "1",
            on_end=partial(ended, entry, accepted.choices),
        )

    @app.post("/v1/chat/completions", **posts(ChatBody, streams=True))
    async def chat_completions(request: Request) -> Response:
        return await serve(request, intake.accept_chat)

    @app.post("/v1/completions", **posts(CompletionBody, streams=True))
    async def completions(request: Request) -> Response:
        return await serve(request, intake.accept_completion)

    @app.post("/v1/responses", **posts(ResponsesBody, streams=True))
    async def create_response(request: Request) -> Response:
        asked, entry = await admit(request, intake.accept_response)
        accepted = asked.accepted
        return ResponseReply(
            flights,
            accepted.choices[0],
            accepted.form,
            intake.threads,
            asked.writer,
            on_response=asked.keep,
            stream=accepted.stream,
            explain=request.headers.get(EXPLAIN) == "1",
            on_end=partial(ended, entry, accepted.choices),
        )

    @app.get("/v1/responses/{response_id}", responses=errors(401, 404))
    async def get_response(request: Request, response_id: str) -> Response:
        stored = intake.stored.get(response_id, who(request).salt)
        return Response(stored.response, media_type="application/json")

    @app.delete("/v1/responses/{response_id}", responses=errors(401, 404))
    async def delete_response(request: Request, response_id: str) -> Response:
        intake.stored.delete(response_id, who(request).salt)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @app.post("/tokenize", **posts(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        who(request)
        ids = await intake.tokenize(await read_object(request, settings.max_body))
        return json_response(
            {"count": len(ids), "max_model_len": intake.max_context, "tokens": ids}
        )

    @app.post("/detokenize", **posts(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        who(request)
        text = await intake.detokenize(await read_object(request, settings.max_body))
        return json_response({"prompt": text})

    def model_card() -> dict[str, Any]:
        return {
            "id": intake.model,
            "object": "model",
            "created": created,
            "owned_by": "dualpath",
            "max_model_len": intake.max_context,
        }

    @app.get("/v1/models", responses=errors(401))
    async def models(request: Request) -> Response:
        who(request)
        return json_response({"object": "list", "data": [model_card()]})

    @app.get("/v1/models/{name:path}", responses=errors(401, 404))
    async def model(request: Request, name: str) -> Response:
        who(request)
        intake.check_model(name)
        return json_response(model_card())

    @app.get("/health")
    async def health() -> Response:
        """The process lives."""
        return json_response({"status": "ok", "detail": gate.healthy()[1]})

    @app.get("/ready", responses=errors(503))
    async def ready() -> Response:
        """Requests are taken."""
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

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))

    _explain_errors(app, watch)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Bodies are read by hand, within limits: their schemas have to be added."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            components = made().setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas())
        return made()

    app.openapi = openapi  # type: ignore[method-assign]


def _explain_errors(app: FastAPI, watch: Watch) -> None:
    """Every error leaves in OpenAI's shape."""

    def respond(request: Request, error: ApiError, **headers: str) -> Response:
        watch.refused(error, RequestId.of(request.scope).shown)
        return json_response(error.body(), error.status, error.headers() | headers)

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        # The rest of a body that was not read to its end must not be taken for the next request.
        return respond(
            request, error, **({"Connection": "close"} if error.status in (408, 413) else {})
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {request.url.path}"
        sentences = {
            404: f"there is no {place} here; GET /docs says what there is",
            405: f"{place} is not allowed",
        }
        sentence = sentences.get(error.status_code, str(error.detail))
        codes = {404: "not_found", 405: "method_not_allowed"}
        return respond(
            request,
            ApiError(error.status_code, sentence, code=codes.get(error.status_code)),
            **(error.headers or {}),
        )

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        request_id = RequestId.of(request.scope).shown
        log.error("request failed", request_id=request_id, path=request.url.path, exc_info=error)
        return respond(request, internal(request_id))
