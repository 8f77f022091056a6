"""KV that gives no logits that are numbers, or a grammar that fails, costs its own request an attempt, and nobody
else anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.nats import NatsServer
from tests.support.reference import reference_greedy
from tests.support.rig import Run, rig
from tests.support.wait import until

from dualpath.model.api import DecodeRow
from dualpath.model.grammar import json_grammar
from dualpath.model.tiny import write_tiny
from dualpath.wire.types import Sampled, Sampling

NEW = 60


def prompt(n: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(260, 512) for _ in range(n)]


async def test_a_damaged_request_loses_its_attempt_while_its_neighbours_go_on(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny(model)
    prompts = [prompt(n, n) for n in (70, 100, 130)]
    async with rig(nats_server, tmp_path, model=str(model), dtype="float32", threads=1) as it:
        backend = it.decode.backends[0]
        decode = backend.decode
        resident = it.decode._engines[0]._resident

        async def damage_one(rows: Sequence[DecodeRow]) -> list[Sampled | None]:
            # The first steps wait for the last request, so that all three are decoded together.
            await until(lambda: len(resident) == 3 or runs[1].lost is not None, within_s=30)
            for row in rows:
                if len(rows) == 3 and row.sampling.seed == 1:
                    nbytes = row.tokens * it.geometry.row_bytes[0]
                    row.kv.wire[:nbytes] = b"\xff" * nbytes
            return await decode(rows)

        runs: list[Run] = []
        backend.decode = damage_one  # type: ignore[method-assign]
        for seed, ids in enumerate(prompts):
            run = await it.begin(ids, Sampling(max_tokens=NEW, seed=seed))
            await it.pair(run, "none", 0, 0)
            runs.append(run)
        await asyncio.wait_for(runs[1].over.wait(), 60)
        lost = runs[1].lost
        assert lost is not None
        assert (lost.node_id, lost.code, lost.retry) == ("d0", "transfer", True)
        assert "damaged" in lost.reason
        for run in (runs[0], runs[2]):
            await asyncio.wait_for(run.over.wait(), 60)
            assert run.lost is None
            assert run.tokens == reference_greedy(model, run.ids, NEW)
        # What was streamed before is right too, and the next attempt goes on from it.
        sent = runs[1].tokens
        assert sent == reference_greedy(model, prompts[1], NEW)[: len(sent)]
        backend.decode = decode  # type: ignore[method-assign]
        again = await it.generate(prompts[1], 20)
        assert again.tokens == reference_greedy(model, prompts[1], 20)
        await it.idle()


LATE: dict[str, Any] = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/n"}},
            "required": ["next"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {"x": {"enum": ["ab", "cd"]}, "y": {"$ref": "#/$defs/n"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
"""Never ends, which only shows once `x` is there."""


async def test_a_grammar_that_fails_on_the_way_ends_its_request_and_not_the_node(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tiny(model)
    async with rig(nats_server, tmp_path, model=str(model), dtype="float32", threads=1) as it:
        sampling = Sampling(max_tokens=NEW, seed=0, grammar=json_grammar(LATE))
        run = await it.generate(prompt(70, 1), NEW, sampling=sampling)
        assert run.lost is not None
        assert (run.lost.node_id, run.lost.code, run.lost.retry) == ("d0", "internal", False)
        assert "grammar" in run.lost.reason
        again = await it.generate(prompt(100, 2), 5)
        assert again.tokens == reference_greedy(model, prompt(100, 2), 5)
        await it.idle()
