"""A request's body: bounded while it is read, parsed, and told from nonsense."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.requests import Request

from dualpath.gateway.errors import ApiError, invalid
from dualpath.gateway.request_id import RequestId

TIMEOUT = "X-Request-Timeout"
"""A client's deadline for its request, in seconds."""

READ_S = 60.0
"""A client that sends its body more slowly is told so."""

DISCARD_FACTOR = 8
"""Of a body that is too long, so many times the limit are read and thrown away: a client that is still sending
when the connection closes would see a reset and not the answer."""


@dataclass(frozen=True)
class Posted:
    """A body's JSON object, how long it was, and whose it is."""

    fields: dict[str, Any]
    nbytes: int
    request_id: RequestId


async def read_object(request: Request, max_bytes: int) -> Posted:
    """The JSON object in the body. Raises ApiError: 413 where it is longer than `max_bytes` (never more is kept), 408
    where it takes READ_S, 400 where it is no JSON object; starlette's ClientDisconnect."""
    try:
        async with asyncio.timeout(READ_S):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"the request body did not arrive within {READ_S:g} s", code="body_timeout"
        ) from None
    return Posted(parse_object(body), len(body), RequestId.of(request.scope))


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen <= max_bytes:
            body += chunk
        else:
            body.clear()
        if seen > DISCARD_FACTOR * max_bytes:
            break
    if seen > max_bytes:
        raise _too_large(max_bytes)
    return bytes(body)


def wish_deadline(headers: Mapping[str, str], posted: Posted) -> None:
    """Take the header TIMEOUT for the body's parameter `timeout`, where it has none. Raises ApiError(400)."""
    text = headers.get(TIMEOUT)
    if text is None or posted.fields.get("timeout") is not None:
        return
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise invalid(f"the header {TIMEOUT} must be a number of seconds above 0", TIMEOUT)
    posted.fields["timeout"] = seconds


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError(400)."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is no valid JSON: {error}", code="malformed_json") from error
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="malformed_json")
    return value


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is longer than {max_bytes} bytes; send less, or raise max_body",
        code="body_too_large",
    )
