from __future__ import annotations

import re
from pathlib import Path

from dualpath.telemetry.metrics import Metrics
from dualpath.telemetry.reference import all_metrics, reference
from dualpath.wire.types import NicUse, NodeStatus, PoolUse

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_of_all_metrics_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), (
        "make it anew: python -m dualpath.telemetry.reference > docs/metrics.md"
    )


def test_every_metric_that_a_process_shows_is_on_the_page() -> None:
    metrics = Metrics("prefill", "prefill-0")
    status = NodeStatus((PoolUse("p", 1, 2),), (NicUse("n", "low", "rx", 1),), 0, {"e": 1})
    metrics.watch(lambda: status)
    shown = {
        (match[1].removesuffix("_total") if match[2] == "counter" else match[1])
        for line in metrics.render().decode().splitlines()
        if (match := re.match(r"# TYPE dualpath_(\S+) (\S+)", line))
        if not match[1].endswith("_created")
    }
    assert shown == {defined.name for defined in all_metrics()}


def test_labels_are_those_that_samples_have() -> None:
    labels = {defined.name: defined.labels for defined in all_metrics()}
    assert labels["nic_bytes"] == ("nic", "direction", "lane")
    assert labels["pool_used"] == ("pool",)
    assert labels["hit_tokens"] == ("path",)


def test_queries_ask_for_metrics_that_exist() -> None:
    suffixes = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
    }
    series = {f"{m.name}{suffix}" for m in all_metrics() for suffix in suffixes[m.kind]}
    asked = re.findall(r"dualpath_([a-z_]+)", reference().partition("## Questions")[2])
    assert asked
    assert set(asked) <= series
