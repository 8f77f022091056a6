"""Both nodes, one request: every read path gives the right tokens and leaves nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import rig

from dualpath.model.synthetic_kv import reference_tokens
from dualpath.wire.types import ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("prefill", "decode", "split")


def prompt(n: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(300, 30_000) for _ in range(n)]


@pytest.mark.parametrize("layerwise", [True, False])
async def test_cold_and_warm_by_every_path(
    nats_server: NatsServer, tmp_path: Path, layerwise: bool
) -> None:
    async with rig(nats_server, tmp_path, layerwise=layerwise, chunk_tokens=200) as it:
        for n in (1, 63, 64, 65, 128, 129, 1000):
            ids = prompt(n, n)
            right = reference_tokens(it.spec, ids, 70, Sampling(max_tokens=70, seed=0))
            cold = await it.generate(ids, 70)
            assert cold.tokens == right
            assert cold.stats.hit_tokens == 0
            for path in PATHS:
                warm = await it.generate(ids, 70, path)
                hits = it.geometry.max_hit_blocks(n)
                assert warm.tokens == right, path
                assert warm.stats.hit_tokens == hits * 64
                assert warm.stats.read_path == (path if hits else "none")
        await it.idle()
