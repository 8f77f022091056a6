"""Server-sent events: one JSON object each."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # A proxy that gathers the stream would undo it.
    "X-Accel-Buffering": "no",
}

_encoder = msgspec.json.Encoder()


def named_event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_event(value)


def data_event(value: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"
