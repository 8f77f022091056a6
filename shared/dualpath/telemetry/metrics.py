"""All Prometheus metrics of all services, defined in this one place.

Names and labels are an interface to dashboards: they may be added to, not changed. Prometheus names the
process by its own `instance` label; `dualpath_process_info` maps that to service and node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dualpath.wire.types import WAIT_BOUNDS_S, NicUse, NodeStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 180, 600,
)  # fmt: skip
_TOKENS = tuple(float(2**power) for power in range(18))

STORAGE_READ_QUEUE = "storage_read"
"""Label of a node's storage read queue in `dualpath_queue_tokens` (the paper's `read_q`)."""


class Metrics:
    """The metrics of one process object, in a registry of their own.

    `service` is gateway, scheduler, prefill, decode or storage; `node_id` names the process.
    """

    def __init__(self, service: str, node_id: str) -> None:
        self.registry = CollectorRegistry()
        self._counters()
        self._histograms()
        self._gauges()
        info = self._gauge("process_info", "Which process this is; always 1", "service", "node_id")
        info.labels(service=service, node_id=node_id).set(1)
        self._status: Callable[[], NodeStatus] | None = None

    def _counters(self) -> None:
        self.hit_tokens = self._counter("hit_tokens", "Prompt tokens whose KV was read", "path")
        self.miss_tokens = self._counter("miss_tokens", "Prompt tokens computed")
        self.blocks_written = self._counter("blocks_written", "KV blocks stored")
        self.blocks_not_stored = self._counter(
            "blocks_not_stored", "KV blocks that were not stored", "reason"
        )
        self.blocks_read = self._counter("blocks_read", "KV blocks asked from storage", "status")
        self.hot_blocks = self._counter(
            "hot_blocks", "KV blocks that were in a node's buffer still (the hot tier), not read"
        )
        self.requests = self._counter("requests", "Requests ended", "outcome")
        self.attempts_lost = self._counter("attempts_lost", "Attempts that were given up", "code")
        self.tokens_generated = self._counter("tokens_generated", "Tokens sampled")
        self.prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens by where their KV came from", "source"
        )

    def _histograms(self) -> None:
        self.phase_seconds = self._histogram(
            "phase_seconds", "Time that requests spent in a phase", _SECONDS, "phase"
        )
        self.queue_seconds = self._histogram(
            "queue_seconds",
            "Time that requests waited for a prefix in flight, a DE, its slots, a PE",
            _SECONDS,
            "queue",
        )
        self.forward_tokens = self._histogram(
            "forward_tokens", "Tokens computed by a forward pass", _TOKENS, "stage"
        )
        self.forward_seconds = self._histogram(
            "forward_seconds", "Time of a forward pass", _SECONDS, "stage"
        )
        self.ttft_seconds = self._histogram("ttft_seconds", "Time to first token", _SECONDS)
        self.ttft_part_seconds = self._histogram(
            "ttft_part_seconds", "Where the time to first token went", _SECONDS, "part"
        )
        self.tpot_seconds = self._histogram(
            "tpot_seconds", "Time per output token after the first", _SECONDS
        )

    def _gauges(self) -> None:
        self.queue_tokens = self._gauge("queue_tokens", "Tokens waiting in a queue", "queue")
        self.queue_requests = self._gauge("queue_requests", "Requests waiting in a queue", "queue")
        self.attempts = self._gauge("attempts", "Attempts by phase, as the scheduler sees", "phase")
        self.nodes = self._gauge("nodes", "Nodes registered and alive", "role")

    def watch(self, status: Callable[[], NodeStatus]) -> None:
        """Read pools, NICs, read queue and counters from `status` at every scrape. Once per process."""
        if self._status is not None:
            raise RuntimeError("these metrics watch a status already; make another Metrics")
        self._status = status
        self.queue_tokens.labels(queue=STORAGE_READ_QUEUE).set_function(
            lambda: float(status().read_q_tokens)
        )
        self.registry.register(_StatusCollector(status))

    def status(self) -> NodeStatus:
        """What `watch` was given, as it is now; empty before."""
        return self._status() if self._status else NodeStatus()

    def render(self) -> bytes:
        """The text exposition, of type CONTENT_TYPE."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"dualpath_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dualpath_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"dualpath_{name}", text, labels, buckets=buckets, registry=self.registry)


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        used = GaugeMetricFamily("dualpath_pool_used", "Used units of a pool", labels=("pool",))
        total = GaugeMetricFamily("dualpath_pool_total", "Size of a pool", labels=("pool",))
        waiting = GaugeMetricFamily(
            "dualpath_pool_waiting", "Requests waiting for a pool", labels=("pool",)
        )
        clean = GaugeMetricFamily(
            "dualpath_pool_clean", "Free units that hold a block still", labels=("pool",)
        )
        for pool in status.pools:
            clean.add_metric((pool.name,), pool.clean)
            used.add_metric((pool.name,), pool.used)
            total.add_metric((pool.name,), pool.total)
            waiting.add_metric((pool.name,), pool.waiting)
        events = CounterMetricFamily("dualpath_events", "Counted events", labels=("event",))
        for name, count in sorted(status.counters.items()):
            events.add_metric((name,), count)
        return *_nic_families(status.nics), used, total, waiting, clean, events

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask for a status."""
        return ()


_NIC_LABELS = ("nic", "direction", "lane")


def _nic_families(nics: Sequence[NicUse]) -> Iterable[Metric]:
    nbytes = CounterMetricFamily("dualpath_nic_bytes", "Bytes moved by a NIC", labels=_NIC_LABELS)
    contended = CounterMetricFamily(
        "dualpath_nic_contended_bytes",
        "Bytes granted while another lane of the NIC waited too",
        labels=_NIC_LABELS,
    )
    chunks = GaugeMetricFamily(
        "dualpath_nic_queue_chunks", "Chunks waiting for their turn at a NIC", labels=_NIC_LABELS
    )
    queued = GaugeMetricFamily(
        "dualpath_nic_queue_bytes",
        "Bytes of the chunks that wait for their turn",
        labels=_NIC_LABELS,
    )
    share = GaugeMetricFamily(
        "dualpath_nic_share",
        "Part of the direction's bytes that a lane moved in the last second or a little more",
        labels=_NIC_LABELS,
    )
    waits = HistogramMetricFamily(
        "dualpath_nic_wait_seconds",
        "Time that chunks waited for their turn; those granted at once count as 0",
        labels=_NIC_LABELS,
    )
    bounds = [*(str(bound) for bound in WAIT_BOUNDS_S), "+Inf"]
    for use in nics:
        labels = (use.nic, use.direction, use.lane)
        nbytes.add_metric(labels, use.nbytes)
        contended.add_metric(labels, use.contended_bytes)
        chunks.add_metric(labels, use.waiting)
        queued.add_metric(labels, use.waiting_bytes)
        share.add_metric(labels, use.share)
        counts = accumulate(use.waits or (0,) * len(bounds))
        waits.add_metric(labels, list(zip(bounds, counts, strict=True)), use.wait_s)
    return nbytes, contended, chunks, queued, share, waits
