"""What nodes count of a request."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig


async def test_nodes_count_tokens_forwards_blocks_and_phases(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, chunk_tokens=200) as it:
        ids = prompt(500, 1)
        for path in ("none", "split"):
            await it.generate(ids, 70, path)
        await it.idle()
        pe, de = it.prefill.metrics.registry, it.decode.metrics.registry
        hits = it.geometry.max_hit_blocks(500) * it.geometry.block_tokens
        steps = it.decode.counters()["steps"]

        def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"dualpath_{name}", labels)

        assert value(pe, "hit_tokens_total", path="split") == hits
        assert value(pe, "miss_tokens_total") == 500 + 500 - hits
        assert value(pe, "forward_tokens_sum", stage="prefill") == 1000 - hits
        # Chunks of 200, 200 and 100, then what was no hit.
        assert value(pe, "forward_seconds_count", stage="prefill") == 4
        assert value(de, "forward_seconds_count", stage="decode") == steps
        # The first token of each is the prefill's.
        assert value(de, "forward_tokens_sum", stage="decode") == 2 * 69
        assert value(de, "tokens_generated_total") == 2 * 70
        found = [value(node, "blocks_read_total", status="found") for node in (pe, de)]
        assert sum(count or 0 for count in found) == it.geometry.max_hit_blocks(500)
        assert value(pe, "phase_seconds_count", phase="prefill") == 2
        assert value(de, "phase_seconds_count", phase="decode") == 2
