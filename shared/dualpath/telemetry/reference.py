"""The reference of all metrics, made from their definitions.

`python -m dualpath.telemetry.reference > docs/metrics.md`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram

from dualpath.telemetry.metrics import Metrics
from dualpath.wire.types import NicUse, NodeStatus, PoolUse

_HEAD = """# Metrics
Made by `python -m dualpath.telemetry.reference > docs/metrics.md`; do not edit.

Every process serves `/metrics` in Prometheus' text format: gateways at the API's port, the others at a port of
their own that `dualpath status` lists. All processes list all metrics; the column *counted by* says where they move.
Names and labels are only ever added to. Times are in seconds. A counter's name ends in `_total`; a histogram has
`_bucket`, `_sum` and `_count`.

| metric | kind | labels | counted by | |
| --- | --- | --- | --- | --- |
"""

_LABELS = """
## Values of labels
| label | values |
| --- | --- |
| `code` | `deadline`, `gateway_lost`, `node_lost`, `unavailable`, `unheld`, `internal`, or a node's own |
| `direction`, `lane` | `rx` and `tx`; `high` (model execution) and `low` (KV-Cache) |
| `outcome` | `done`, `cancelled` (the client went away), `failed` |
| `part` | `tokenize`, `match`, `scheduling`, `allocation`, `reading`, `prefill`, `other`: they sum up to the whole |
| `path` | `prefill`, `decode`, `split`: who read the cached KV |
| `phase` | `queued`, `paired`, `loading`, `prefill`, `handoff`, `decode`, `done`, `cancelled`, `failed` |
| `queue` | `decode`, `prefill`: at the scheduler; `slots`: of the DE (seconds); `storage_read`: `read_q` |
| `reason` | `no_slot`: no free write-back slot; `cnic`: not copied off the device; `shard`: refused by a shard |
| `source` | `prefill`, `decode`: storage, over that read path; `hot`: a node's own memory; `computed` |
| `status` | `found`, `absent`, `corrupt` (failed its checksum), `failed` (no answer in time) |
"""

_QUESTIONS = """
## Questions and queries
"""

_QUERIES = {
    "what share of prompt tokens was read, not computed?": (
        "sum(rate(dualpath_hit_tokens_total[5m])) / (sum(rate(dualpath_hit_tokens_total[5m]))"
        " + sum(rate(dualpath_miss_tokens_total[5m])))"
    ),
    "do both sides read?": "sum by (path) (rate(dualpath_hit_tokens_total[5m]))",
    "how busy is each storage NIC?": (
        'sum by (nic, direction) (rate(dualpath_nic_bytes_total{nic=~".*snic"}[1m]))'
    ),
    "how do lanes share a NIC while both wait?": (
        "sum by (nic, direction, lane) (rate(dualpath_nic_contended_bytes_total[1m]))"
        " / ignoring (lane) group_left sum by (nic, direction)"
        " (rate(dualpath_nic_contended_bytes_total[1m]))"
    ),
    "how long do chunks wait for a NIC, 99th percentile?": (
        "histogram_quantile(0.99, sum by (nic, direction, lane, le)"
        " (rate(dualpath_nic_wait_seconds_bucket[1m])))"
    ),
    "what is the time to first token, 95th percentile?": (
        "histogram_quantile(0.95, sum by (le) (rate(dualpath_ttft_seconds_bucket[5m])))"
    ),
    "where does the time to first token go?": (
        "sum by (part) (rate(dualpath_ttft_part_seconds_sum[5m]))"
        " / sum by (part) (rate(dualpath_ttft_part_seconds_count[5m]))"
    ),
    "how long are requests in each phase?": (
        "sum by (phase) (rate(dualpath_phase_seconds_sum[5m]))"
        " / sum by (phase) (rate(dualpath_phase_seconds_count[5m]))"
    ),
    "what do requests wait for?": "dualpath_pool_waiting > 0",
    "is a pool full?": "dualpath_pool_used / (dualpath_pool_total > 0) > 0.95",
    "what share of cached KV was in a node's memory still (the hot tier)?": (
        "sum(rate(dualpath_hot_blocks_total[5m])) / (sum(rate(dualpath_hot_blocks_total[5m]))"
        ' + sum(rate(dualpath_blocks_read_total{status="found"}[5m])))'
    ),
    "is KV-Cache lost?": "sum by (reason) (rate(dualpath_blocks_not_stored_total[5m]))",
    "do nodes fail?": "sum by (code) (rate(dualpath_attempts_lost_total[5m]))",
}
"""What operators ask, and in Prometheus' language."""

_ALERTS = """
Alert on requests with `outcome="failed"`, on `dualpath_nodes` below what was started, and on a target that is down.
A dashboard is in `compose/grafana/`.
"""

_EVERY = "every process"
_NODES = "prefill, decode"
_NICS = "prefill, decode, storage"
_COUNTED_BY = {
    "attempts": "scheduler",
    "attempts_lost": "scheduler, prefill, decode",
    "blocks_not_stored": "decode",
    "blocks_read": _NODES,
    "blocks_written": "decode",
    "events": _EVERY,
    "forward_seconds": _NODES,
    "forward_tokens": _NODES,
    "hit_tokens": "prefill",
    "hot_blocks": _NODES,
    "miss_tokens": "prefill",
    "nic_bytes": _NICS,
    "nic_contended_bytes": _NICS,
    "nic_queue_bytes": _NICS,
    "nic_queue_chunks": _NICS,
    "nic_share": _NICS,
    "nic_wait_seconds": _NICS,
    "nodes": "scheduler",
    "phase_seconds": "scheduler, prefill, decode",
    "pool_clean": _NODES,
    "pool_total": _EVERY,
    "pool_used": _EVERY,
    "pool_waiting": _EVERY,
    "process_info": _EVERY,
    "prompt_tokens": "gateway",
    "queue_requests": "scheduler",
    "queue_seconds": "scheduler",
    "queue_tokens": "scheduler, prefill, decode",
    "requests": "gateway",
    "tokens_generated": "decode",
    "tpot_seconds": "gateway",
    "ttft_part_seconds": "gateway",
    "ttft_seconds": "gateway",
}
_ONE_OF_EACH = NodeStatus(
    pools=(PoolUse("pool", 0, 0),),
    nics=(NicUse("nic", "low", "rx", 0),),
    counters={"event": 0},
)


@dataclass(frozen=True)
class Defined:
    """A metric; `name` lacks the prefix `dualpath_` and a counter's `_total`."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


class _Recorder(Metrics):
    """Writes down what is defined."""

    def __init__(self) -> None:
        self.defined: list[Defined] = []
        super().__init__("reference", "reference")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self.defined.append(Defined(name, "counter", text, labels))
        return super()._counter(name, text, *labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self.defined.append(Defined(name, "gauge", text, labels))
        return super()._gauge(name, text, *labels)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        self.defined.append(Defined(name, "histogram", text, labels))
        return super()._histogram(name, text, buckets, *labels)


def all_metrics() -> list[Defined]:
    """Every metric that a process can show, by name."""
    recorder = _Recorder()
    recorder.watch(lambda: _ONE_OF_EACH)
    known = {f"dualpath_{defined.name}" for defined in recorder.defined}
    from_status = [
        Defined(
            family.name.removeprefix("dualpath_"),
            family.type,
            family.documentation,
            tuple(label for label in family.samples[0].labels if label != "le"),
        )
        for family in recorder.registry.collect()
        if family.name not in known
    ]
    return sorted([*recorder.defined, *from_status], key=lambda defined: defined.name)


def reference() -> str:
    """The whole page, in Markdown."""
    queries = (f"- {question} `{query}`\n" for question, query in _QUERIES.items())
    return "".join([_HEAD, *_rows(), _LABELS, _QUESTIONS, *queries, _ALERTS])


def _rows() -> Iterator[str]:
    for defined in all_metrics():
        full = f"dualpath_{defined.name}" + ("_total" if defined.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in defined.labels)
        who = _COUNTED_BY[defined.name]
        yield f"| `{full}` | {defined.kind} | {labels} | {who} | {defined.text} |\n"


if __name__ == "__main__":
    print(reference(), end="")
