"""Spans: their context travels with messages, and without an exporter there is nothing at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.nats import NatsServer

from dualpath.telemetry import tracing
from dualpath.wire import control
from dualpath.wire.codec import Message

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.configure_tracing("test", "here", None, exporter=exporter)
    yield exporter
    tracing.close_tracing()


async def heard(server: NatsServer) -> str:
    """The context in which a handler works that is asked now."""
    found: list[str] = []

    async def handle(message: Message) -> Message:
        found.append(tracing.current())
        with tracing.span("handled"):
            return control.Ok()

    here, there = await server.connect("here"), await server.connect("there")
    try:
        await there.serve("dualpath.test", control.to_scheduler, handle)
        asked = await here.request("dualpath.test", control.StatusRequest(), timeout_s=60)
        assert asked == control.Ok()
    finally:
        await here.close()
        await there.close()
    return found[0]


async def test_a_message_carries_the_span_that_it_was_sent_in(
    nats_server: NatsServer, spans: InMemorySpanExporter
) -> None:
    with tracing.span("asking", PARENT, size=3) as asking:
        assert await heard(nats_server) == asking.traceparent
    handled, asked = spans.get_finished_spans()
    assert (handled.name, asked.name) == ("handled", "asking")
    assert handled.parent is not None
    assert asked.parent is not None
    assert handled.parent.span_id == asked.context.span_id
    assert f"{asked.parent.span_id:016x}" == PARENT.split("-")[2]
    assert {f"{span.context.trace_id:032x}" for span in (handled, asked)} == {PARENT.split("-")[1]}
    assert asked.attributes == {"dualpath.size": 3}


async def test_without_an_exporter_nothing_travels(nats_server: NatsServer) -> None:
    with tracing.span("asking", PARENT) as asking:
        assert asking is tracing.OFF
        assert await heard(nats_server) == ""


def test_what_fails_is_marked_and_what_is_no_context_begins_a_trace(
    spans: InMemorySpanExporter,
) -> None:
    for parent in ("nonsense", "00-" + "0" * 500, "00-zz-zz-01"):
        with pytest.raises(ValueError, match="wrong"), tracing.span("failing", parent):
            raise ValueError("wrong")
    assert all(span.parent is None for span in spans.get_finished_spans())
    assert {span.status.description for span in spans.get_finished_spans()} == {"ValueError: wrong"}
    assert tracing.start("of no trace", "") is tracing.OFF


def test_a_process_without_tracing_does_not_load_opentelemetry() -> None:
    code = (
        "import sys\n"
        "from dualpath.telemetry import tracing\n"
        "tracing.configure_tracing('gateway', 'g', None)\n"
        "with tracing.span('a', 'b') as span: span.set(c=1)\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(tracing.TracingError, match=r"pip install 'dualpath\[otel\]'"):
        tracing.configure_tracing("gateway", "g", "http://127.0.0.1:4318")
