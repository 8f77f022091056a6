"""An OpenTelemetry collector for tests: takes spans over OTLP/HTTP on loopback, and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span; `service` is its process's name."""

    name: str
    service: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, str]
    failed: bool


class Collector:
    """`url` is what `otel_endpoint` takes."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._lock = threading.Lock()
        self._seen: list[Seen] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            service = {a.key: a.value.string_value for a in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                seen = Seen(
                    span.name,
                    service["service.instance.id"],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    {a.key: str(a.value).strip() for a in span.attributes},
                    span.status.code == span.status.STATUS_CODE_ERROR,
                )
                with self._lock:
                    self._seen.append(seen)

    def trace(self, trace_id: str) -> list[Seen]:
        """What has come of a trace so far."""
        with self._lock:
            return [span for span in self._seen if span.trace == trace_id]


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            zipped = self.headers.get("Content-Encoding") == "gzip"
            it.take(gzip.decompress(body) if zipped else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
