"""Structured logs: one event a line, for people (console) or machines (JSON).

No line holds prompt text, generated text or a secret: fields of such names are masked, and tracebacks
are printed without local variables. Every line about a request carries `request_id` and `attempt`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from dualpath.wire.types import Attempt

MASKED = frozenset(
    {
        "api_key", "authorization", "content", "messages", "nats_password", "password", "prompt",
        "secret", "text", "token_ids",
    }
)  # fmt: skip
"""Fields whose values never reach a log."""


def configure_logging(service: str, *, fmt: str, level: str) -> None:
    """Send all logs of this process, the standard library's included, to stderr.

    `fmt` is `console` or `json`, `level` one of debug, info, warning, error. Every line of JSON names `service` and
    `pid`; those for people stand beside the name already, on the supervisor's console and in the log's own.
    Raises ValueError for another format or level.
    """
    if fmt not in ("console", "json"):
        raise ValueError(f"log format {fmt!r} is unknown; use console or json")
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is unknown; use debug, info, warning or error")
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _adder(service, named=fmt == "json"),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(
            fmt="iso" if fmt == "json" else "%Y-%m-%d %H:%M:%S", utc=True, key="ts"
        ),
        _mask,
    ]
    render = _renderers(fmt)
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                *shared,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                _mask,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries talk about their own insides; warnings are what operators need of it.
    root.setLevel(max(number, logging.WARNING))


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines carry `logger=name`."""
    logger: FilteringBoundLogger = structlog.get_logger(logger_name=name.removeprefix("dualpath."))
    return logger


@contextmanager
def request_context(attempt: Attempt | None) -> Iterator[None]:
    """All lines logged inside (and by tasks started inside) carry the attempt's identity."""
    if attempt is None:
        yield
        return
    with structlog.contextvars.bound_contextvars(
        request_id=attempt.request_id, attempt=attempt.number
    ):
        yield


def _adder(service: str, *, named: bool) -> Processor:
    pid = os.getpid()

    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if named:
            event.setdefault("service", service)
            event.setdefault("pid", pid)
        # structlog takes no initial value of the name `logger`.
        if "logger_name" in event:
            event["logger"] = event.pop("logger_name")
        return event

    return add


def _mask(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name in MASKED & event.keys():
        event[name] = "[masked]"
    return event


def _renderers(fmt: str) -> list[Any]:
    if fmt == "json":
        return [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, sort_keys=False),
        ]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The rich formatter would print local variables: prompts and secrets among them.
            exception_formatter=structlog.dev.plain_traceback,
            timestamp_key="ts",
            pad_event_to=0,
            pad_level=False,
        )
    ]
