"""Both nodes with a model of every family: whichever way KV travels, the tokens are those of `transformers`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoints import FAMILIES, write_checkpoint
from tests.support.nats import NatsServer
from tests.support.reference import reference_greedy, smallest_gap
from tests.support.rig import Rig, Run, rig

from dualpath.wire.types import ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("prefill", "decode", "split")
CHUNK = 100
NEW = 20
NEAR_TIE = 1e-3


def draw(directory: Path, length: int) -> list[int]:
    """A prompt whose answer has no near-tie, and which begins like no other length's."""
    for seed in range(100):
        source = random.Random(1000 * length + seed)
        ids = [source.randrange(260, 512) for _ in range(length)]
        if smallest_gap(directory, ids, NEW) >= NEAR_TIE:
            return ids
    raise AssertionError("every prompt has a near-tie")


async def begin(it: Rig, ids: list[int]) -> Run:
    return await it.begin(ids, Sampling(max_tokens=NEW, seed=0))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layerwise", [True, False], ids=["layerwise", "whole"])
async def test_cold_and_warm_by_every_path(
    nats_server: NatsServer, tmp_path: Path, family: str, layerwise: bool
) -> None:
    directory = tmp_path / family
    directory.mkdir()
    write_checkpoint(directory, family, files=2)
    prompts = [draw(directory, length) for length in (65, 230)]
    right = [reference_greedy(directory, ids, NEW) for ids in prompts]
    settings: dict[str, Any] = {"model": str(directory), "dtype": "float32", "threads": 1}
    async with rig(
        nats_server, tmp_path, layerwise=layerwise, chunk_tokens=CHUNK, **settings
    ) as it:
        for ids, tokens in zip(prompts, right, strict=True):
            # In one chunk, and in three: the later ones take everything before them from the DE buffer.
            cold = await it.generate(ids, NEW)
            assert (cold.tokens, cold.stats.hit_tokens) == (tokens, 0)
            for path in PATHS:
                warm = await it.generate(ids, NEW, path)
                assert warm.tokens == tokens, path
                assert warm.stats.hit_tokens == (len(ids) - 1) // 64 * 64
                assert warm.stats.read_path == path
        # Together: one forward of rows that are cold and of rows that come by different ways.
        runs = [await begin(it, ids) for ids in (*prompts, *prompts)]
        await it.pair(runs[0], "prefill", 1, 1)
        await it.pair(runs[1], "split", 3, 1)
        await it.pair(runs[2], "none", 0, 0)
        await it.pair(runs[3], "decode", 3, 0)
        for run, tokens in zip(runs, (*right, *right), strict=True):
            await asyncio.wait_for(run.over.wait(), 60)
            assert run.tokens == tokens
        await it.idle()
