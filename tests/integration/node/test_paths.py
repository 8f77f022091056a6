"""Both nodes, one request: every read path gives the right tokens and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig, right

from dualpath.wire.types import ReadPath

PATHS: tuple[ReadPath, ...] = ("prefill", "decode", "split")


@pytest.mark.parametrize("layerwise", [True, False])
async def test_cold_and_warm_by_every_path(
    nats_server: NatsServer, tmp_path: Path, layerwise: bool
) -> None:
    async with rig(nats_server, tmp_path, layerwise=layerwise, chunk_tokens=200) as it:
        for n in (1, 63, 64, 65, 128, 129, 1000):
            ids = prompt(n, n)
            cold = await it.generate(ids, 70)
            assert cold.tokens == right(it, cold, 70)
            assert cold.stats.hit_tokens == 0
            for path in PATHS:
                warm = await it.generate(ids, 70, path)
                hits = it.geometry.max_hit_blocks(n)
                assert warm.tokens == cold.tokens, path
                assert warm.stats.hit_tokens == hits * 64
                assert warm.stats.read_path == (path if hits else "none")
        await it.idle()
