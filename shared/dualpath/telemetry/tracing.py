"""OpenTelemetry spans of requests, from the gateway to the shards (extra `dualpath[otel]`).

What travels is the W3C `traceparent`: in the headers of NATS messages, and in the field `trace` of messages to
shards, which have no headers. Without `configure_tracing` all of this is off: no span is made, nothing is imported,
and messages carry nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan

HEADER = "traceparent"
"""Of HTTP requests and NATS messages."""

_LONGEST_PARENT = 128
_EVERY_MS, _SEND_S = 1000, 5
_current: ContextVar[str] = ContextVar("dualpath_traceparent", default="")


class TracingError(Exception):
    """Spans cannot be exported; the text says what to do."""


class Span:
    """A piece of work. One that is off (the default) does nothing; `traceparent` is empty then."""

    def __init__(self, span: OtelSpan | None = None) -> None:
        self._span = span
        self.traceparent = _inject(span) if span is not None else ""

    def set(self, **attributes: str | float | bool | None) -> None:
        """Attributes get the prefix `dualpath.`; None is left out."""
        if self._span is not None:
            for name, value in attributes.items():
                if value is not None:
                    self._span.set_attribute(f"dualpath.{name}", value)

    def fail(self, reason: str) -> None:
        """The work did not come to its end."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """Once; afterwards it is exported."""
        if self._span is not None:
            self._span.end()


OFF = Span()


class _Tracing:
    """The process's exporter of spans; None: off."""

    provider: TracerProvider | None = None


def configure_tracing(
    service: str, node_id: str, endpoint: str | None, *, exporter: SpanExporter | None = None
) -> None:
    """Export this process's spans to `endpoint`, an OTLP collector over HTTP (`http://host:4318`); None turns tracing
    off. Tests give an `exporter` instead. Raises TracingError where the extra is not installed."""
    if endpoint is None and exporter is None:
        _Tracing.provider = None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    except ImportError as error:
        raise TracingError(
            f"otel_endpoint needs OpenTelemetry: pip install 'dualpath[otel]' ({error})"
        ) from error
    resource = Resource.create(
        {"service.name": f"dualpath-{service}", "service.instance.id": node_id}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        url = f"{(endpoint or '').rstrip('/')}/v1/traces"
        sender = OTLPSpanExporter(endpoint=url, timeout=_SEND_S)
        provider.add_span_processor(BatchSpanProcessor(sender, schedule_delay_millis=_EVERY_MS))
    _Tracing.provider = provider


def close_tracing(within_s: float = 3.0) -> None:
    """Export what is left, and turn tracing off. Blocks, for `within_s` at most where a collector does not answer."""
    provider, _Tracing.provider = _Tracing.provider, None
    if provider is not None:
        provider.force_flush(int(1000 * within_s))


def current() -> str:
    """The `traceparent` of the span that this task works in; empty where there is none."""
    return _current.get()


def enter(traceparent: str) -> Token[str]:
    """This task works in that span from here on: its own spans and messages belong to it."""
    return _current.set(traceparent)


def leave(token: Token[str]) -> None:
    _current.reset(token)


def start(name: str, parent: str | None = None, **attributes: str | float | bool | None) -> Span:
    """A span that its caller ends. `parent`: a traceparent (what is none begins a trace); None: the current one;
    empty: the work belongs to no trace, and no span is made."""
    provider = _Tracing.provider
    if provider is None or parent == "":
        return OFF
    context = _extract(_current.get() if parent is None else parent)
    span = Span(provider.get_tracer("dualpath").start_span(name, context))
    span.set(**attributes)
    return span


@contextmanager
def span(
    name: str, parent: str | None = None, **attributes: str | float | bool | None
) -> Iterator[Span]:
    """A span around a block, in which it is the current one. An exception marks it as failed."""
    made = start(name, parent, **attributes)
    if made is OFF:
        yield OFF
        return
    token = _current.set(made.traceparent)
    try:
        yield made
    except BaseException as error:
        made.fail(f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        _current.reset(token)
        made.end()


def _inject(span: OtelSpan) -> str:
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get(HEADER, "")


def _extract(traceparent: str) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent or len(traceparent) > _LONGEST_PARENT:
        return Context()
    return TraceContextTextMapPropagator().extract({HEADER: traceparent}, Context())
