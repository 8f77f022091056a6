from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dualpath.telemetry.metrics import Metrics
from dualpath.wire.types import NicUse, NodeStatus, PoolUse


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_two_processes_objects_do_not_share_a_registry() -> None:
    one, two = Metrics("decode", "decode-0"), Metrics("decode", "decode-1")
    one.tokens_generated.inc(3)
    assert samples(one)["dualpath_tokens_generated_total", ()] == 3
    assert samples(two)["dualpath_tokens_generated_total", ()] == 0


def test_a_watched_status_is_read_at_each_scrape() -> None:
    metrics = Metrics("decode", "decode-0")
    status = NodeStatus()
    metrics.watch(lambda: status)
    status = NodeStatus(
        pools=(PoolUse("de_slots", 3, 10, 2),),
        nics=(NicUse("snic", "low", "rx", 4096),),
        read_q_tokens=640,
        counters={"quarantined": 1},
    )
    found = samples(metrics)
    nic = (("direction", "rx"), ("lane", "low"), ("nic", "snic"))
    assert found["dualpath_nic_bytes_total", nic] == 4096
    assert found["dualpath_pool_used", (("pool", "de_slots"),)] == 3
    assert found["dualpath_pool_total", (("pool", "de_slots"),)] == 10
    assert found["dualpath_pool_waiting", (("pool", "de_slots"),)] == 2
    assert found["dualpath_queue_tokens", (("queue", "storage_read"),)] == 640
    assert found["dualpath_events_total", (("event", "quarantined"),)] == 1


def test_watching_twice_is_an_error() -> None:
    metrics = Metrics("decode", "decode-0")
    metrics.watch(NodeStatus)
    with pytest.raises(RuntimeError, match="another Metrics"):
        metrics.watch(NodeStatus)


def test_metric_names_are_the_documented_ones() -> None:
    metrics = Metrics("gateway", "gateway-0")
    metrics.watch(NodeStatus)
    families = {family.name for family in metrics.registry.collect()}
    assert families >= {
        "dualpath_nic_bytes", "dualpath_queue_tokens", "dualpath_pool_used", "dualpath_pool_total",
        "dualpath_pool_waiting", "dualpath_phase_seconds", "dualpath_hit_tokens",
        "dualpath_miss_tokens", "dualpath_blocks_written", "dualpath_blocks_not_stored",
        "dualpath_blocks_read", "dualpath_requests", "dualpath_attempts_lost",
        "dualpath_tokens_generated", "dualpath_forward_tokens",
    }  # fmt: skip
