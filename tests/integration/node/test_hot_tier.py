"""The hot tier: blocks that a node's buffer holds still are not read again, and what comes of them is right."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import Rig, Run, prompt, rig, right

from dualpath.memory.admission import slot_stride
from dualpath.model.spec import load_spec
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.types import ReadPath, Sampling

BLOCK = 64


async def asked(it: Rig, ids: list[int], n: int, path: ReadPath) -> Run:
    """A request whose answer is right, and its blocks stored."""
    run = await it.generate(ids, n, path)
    assert run.lost is None
    assert run.tokens == right(it, run, n)
    await it.idle()
    return run


def hot(run: Run) -> tuple[int, int]:
    return run.stats.prefill_hot_tokens, run.stats.decode_hot_tokens


@pytest.mark.parametrize("layerwise", [True, False])
async def test_what_a_side_has_read_or_stored_it_need_not_read_again(
    nats_server: NatsServer, tmp_path: Path, layerwise: bool
) -> None:
    async with rig(nats_server, tmp_path, hot_tier=True, layerwise=layerwise) as it:
        ids = prompt(10 * BLOCK + 5, 1)
        await asked(it, ids, 3, "none")
        # The DE wrote all ten blocks; the PE has none.
        decode = await asked(it, ids, 3, "decode")
        assert (hot(decode), decode.stats.decode_bytes_read) == ((0, 10 * BLOCK), 0)
        assert decode.stats.hit_tokens == 10 * BLOCK
        first = await asked(it, ids, 3, "prefill")
        assert hot(first) == (0, 0)
        again = await asked(it, ids, 3, "prefill")
        assert (hot(again), again.stats.prefill_bytes_read) == ((10 * BLOCK, 0), 0)
        # What the PE wrote into the DE's slots was not read by the DE: it is not kept there.
        split = await asked(it, ids, 3, "split")
        assert hot(split) == (5 * BLOCK, 0)
        split = await asked(it, ids, 3, "split")
        assert hot(split) == (5 * BLOCK, 5 * BLOCK)
        # A longer prompt is hot as far as it is the same.
        longer = await asked(it, ids[: 10 * BLOCK] + prompt(4 * BLOCK, 2), 3, "decode")
        assert (longer.stats.hit_tokens, *hot(longer)) == (10 * BLOCK, 0, 5 * BLOCK)


async def test_off_nothing_is_kept(nats_server: NatsServer, tmp_path: Path) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(5 * BLOCK + 1, 1)
        for path in ("none", "decode", "decode", "prefill", "prefill"):
            run = await asked(it, ids, 2, path)
            assert hot(run) == (0, 0)
            assert not any(pool.clean for node in (it.prefill, it.decode) for pool in node.pools())


async def test_a_full_buffer_of_clean_slots_delays_nobody_and_the_bytes_are_right(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Buffers that hold little more than one prompt, and far more blocks than they can keep, several at once."""
    spec = load_spec(Settings(model="synthetic", home=tmp_path))
    stride = slot_stride(spec.geometry.full_block_bytes)
    chance = random.Random(7)
    async with rig(
        nats_server,
        tmp_path / "full",
        hot_tier=True,
        max_context=12 * BLOCK,
        prefill_buffer=14 * stride,
        decode_buffer=(18 + 4) * stride,
        write_back_blocks=4,
    ) as it:
        prompts = [
            prompt(chance.randint(2, 10) * BLOCK + chance.randint(1, 60), n) for n in range(6)
        ]
        for ids in prompts:
            await asked(it, ids, 2, "none")
        found = Counter[str]()
        for _ in range(6):
            chosen = [chance.choice(prompts) for _ in range(4)]
            paths: list[ReadPath] = [chance.choice(("prefill", "decode", "split")) for _ in chosen]
            runs = await asyncio.gather(
                *(it.generate(ids, 2, path) for ids, path in zip(chosen, paths, strict=True))
            )
            for run, ids in zip(runs, chosen, strict=True):
                assert run.lost is None
                assert run.tokens == right(it, run, 2)
                assert run.stats.hit_tokens == it.geometry.max_hit_blocks(len(ids)) * BLOCK
                found.update(
                    prefill=run.stats.prefill_hot_tokens, decode=run.stats.decode_hot_tokens
                )
        await it.idle()
        assert found["prefill"] > 0
        assert found["decode"] > 0
        for node in (it.prefill, it.decode):
            counters = node.status().counters
            assert counters["hot_evicted"] > 0
            assert counters["hot_hits"] > 0


async def test_a_request_that_is_cancelled_leaves_no_block_that_is_wrong(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, hot_tier=True) as it:
        ids = prompt(8 * BLOCK + 9, 3)
        await asked(it, ids, 2, "none")
        paths: tuple[ReadPath, ...] = ("prefill", "decode", "split")
        for path in paths * 2:
            run = await it.begin(ids, Sampling(max_tokens=50, seed=0))
            hits = it.geometry.max_hit_blocks(len(ids))
            await it.pair(
                run, path, hits, hits // 2 if path == "split" else hits * (path == "prefill")
            )
            for node in ("p0", "d0"):
                await it.tell(node, control.Abort(run.attempt, "test"))
            await it.idle()
            await asked(it, ids, 2, path)
