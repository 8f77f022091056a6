"""The expert group's benchmark reads what nodes really say."""

from __future__ import annotations

from benchmarks.expert_group import Counted, parse

from dualpath.lanes import Lane, PacedNic
from dualpath.telemetry.metrics import Metrics
from dualpath.wire.types import NicUse, NodeStatus


def test_steps_and_the_low_lane_of_cnics_are_found_in_a_nodes_metrics() -> None:
    metrics = Metrics("decode", "decode-0")
    nics = [PacedNic("decode-0.snic"), PacedNic("decode-0.cnic0"), PacedNic("decode-0.cnic1")]
    moved = tuple(
        NicUse(nic.name, lane.name.lower(), direction, 10 ** (2 * number + (direction == "tx")))
        for number, nic in enumerate(nics)
        for lane in (Lane.LOW, Lane.HIGH)
        for direction in ("tx", "rx")
    )
    metrics.watch(lambda: NodeStatus(nics=moved))
    metrics.forward_seconds.labels(stage="decode").observe(0.5)
    metrics.forward_seconds.labels(stage="decode").observe(0.25)
    metrics.forward_seconds.labels(stage="prefill").observe(8)
    assert parse(metrics.render().decode()) == Counted(0.75, 2, 100 + 1_000 + 10_000 + 100_000)
