"""The OpenAPI document: bodies as `schema.py` checks them, errors as `errors.py` makes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dualpath.gateway.responses import ResponsesBody
from dualpath.gateway.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

_REFERENCE = "#/components/schemas/{model}"

BODIES: tuple[type[BaseModel], ...] = (
    ChatBody,
    CompletionBody,
    ResponsesBody,
    TokenizeBody,
    DetokenizeBody,
)

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_STATUSES = {
    400: "The body is wrong; `param` says where",
    401: "No API key, or none that is known",
    404: "No such model",
    408: "The body came too slowly, or the request did not finish within its `timeout`",
    413: "The body or its prompt is too long",
    429: "Too many requests; come back after `Retry-After` seconds",
    500: "A fault of the cluster's",
    503: "Cannot be served now; come back after `Retry-After` seconds",
    504: "Not finished before the deadline",
}


def posts(body: type[BaseModel], *, streams: bool = False) -> dict[str, Any]:
    """What FastAPI's route decorators take for an operation with this body."""
    kinds: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        kinds["text/event-stream"] = {"schema": {"type": "string"}}
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": {200: {"description": "The answer", "content": kinds}, **errors(*_STATUSES)},
    }


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The part `responses` of a route's decorator."""
    schema = {"$ref": _REFERENCE.format(model="Error")}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses}


def schemas() -> dict[str, Any]:
    """What the routes refer to."""
    _, found = models_json_schema(
        [(body, "validation") for body in BODIES], ref_template=_REFERENCE
    )
    return {**found["$defs"], "Error": _ERROR}
