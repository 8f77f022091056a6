"""What goes wrong between two nodes ends in right tokens or a lost attempt, and never in held memory."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import Rig, prompt, rig, right
from tests.support.stored import flip, stored
from tests.support.wait import until

from dualpath.wire import control
from dualpath.wire.store import Namespace
from dualpath.wire.types import ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("none", "prefill", "decode", "split")
MIB = 1 << 20


async def test_thirty_requests_at_once_over_all_paths(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, chunk_tokens=300) as it:
        prompts = [prompt(40 + 37 * i, i) for i in range(10)]
        await asyncio.gather(*(it.generate(ids, 20) for ids in prompts))
        runs = await asyncio.gather(
            *(it.generate(prompts[i % 10], 20, PATHS[1 + i % 3]) for i in range(30))
        )
        for run in runs:
            assert run.tokens == right(it, run, 20)
            assert run.stats.hit_tokens == it.geometry.max_hit_blocks(len(run.ids)) * 64
        await it.idle()


@pytest.mark.parametrize("layerwise", [True, False])
async def test_fifty_requests_through_memory_for_barely_one(
    nats_server: NatsServer, tmp_path: Path, layerwise: bool
) -> None:
    block = 64 * 8 * 256
    async with rig(
        nats_server,
        tmp_path,
        max_context=1024,
        layerwise=layerwise,
        chunk_tokens=256,
        write_back_blocks=1,
        prefill_buffer=16 * block,
        decode_buffer=17 * block,
        prefill_hbm=16 * block if not layerwise else 3 * 1024 * 256,
        decode_hbm=16 * block,
    ) as it:
        prompts = [prompt(100 + 83 * i, i) for i in range(10)]
        for ids in prompts:
            await it.generate(ids, 2)
        runs = await asyncio.gather(
            *(it.generate(prompts[i % 10], 8, PATHS[i % 4]) for i in range(50))
        )
        for run in runs:
            if run.lost is None:
                assert run.tokens == right(it, run, 8)
            else:
                assert run.lost.code == "preempted"
        await it.idle()


async def test_out_of_hbm_the_youngest_gives_way_and_the_oldest_finishes(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    block = 64 * 8 * 256
    # Slow enough that the second is resident before the first grows for the first time.
    async with rig(
        nats_server,
        tmp_path,
        max_context=1024,
        decode_hbm=16 * block,
        synthetic={"decode_step_s": 0.005},
    ) as it:
        runs = await asyncio.gather(*(it.generate(prompt(450, i), 200) for i in range(2)))
        assert sorted(run.lost is None for run in runs) == [False, True]
        for run in runs:
            if run.lost is None:
                assert run.tokens == right(it, run, 200)
            else:
                assert run.lost.code == "preempted"
                assert run.tokens == right(it, run, 200)[: len(run.tokens)]
        await it.idle()


@pytest.mark.parametrize("path", PATHS)
async def test_aborted_at_any_moment_nothing_is_held(
    nats_server: NatsServer, tmp_path: Path, path: ReadPath
) -> None:
    source = random.Random(7)
    async with rig(
        nats_server,
        tmp_path,
        chunk_tokens=300,
        cnic_bandwidth=30_000_000,
        snic_bandwidth=30_000_000,
    ) as it:
        ids = prompt(1500, 1)
        await it.generate(ids, 2)
        for _ in range(8):
            run = await it.begin(ids, Sampling(max_tokens=100, seed=0))
            hits = it.geometry.max_hit_blocks(len(ids))
            own = {"none": 0, "prefill": hits, "decode": 0, "split": hits // 2}[path]
            await it.pair(run, path, 0 if path == "none" else hits, own)
            await asyncio.sleep(source.random() * 0.4)
            for node in source.sample(["p0", "d0"], 2):
                await it.tell(node, control.Abort(run.attempt, "the client is gone"))
            await it.idle()
        again = await it.generate(ids, 20, path)
        assert again.tokens == right(it, again, 20)
        await it.idle()


async def test_a_hole_in_either_share_is_computed(nats_server: NatsServer, tmp_path: Path) -> None:
    async with rig(nats_server, tmp_path) as it:
        for seed, (path, hole) in enumerate(
            [("prefill", 3), ("decode", 4), ("split", 2), ("split", 9)]
        ):
            ids = prompt(900, seed)
            await it.generate(ids, 2)
            keys = it.keys(ids)[1]
            await lose(it, tmp_path / "store", keys[16 * hole : 16 * hole + 16])
            warm = await it.generate(ids, 20, path)  # type: ignore[arg-type]
            assert warm.tokens == right(it, warm, 20)
            assert warm.stats.hit_tokens == 64 * hole
            await it.idle()
            healed = await it.generate(ids, 20, path)  # type: ignore[arg-type]
            assert healed.tokens == right(it, healed, 20)
            assert healed.stats.hit_tokens == 64 * it.geometry.max_hit_blocks(900)


async def test_one_flipped_byte_on_disk_is_found_and_computed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        for seed, path in enumerate(("prefill", "decode")):
            ids = prompt(500, 50 + seed)
            await it.generate(ids, 2)
            file, offset = blocks_by_key(tmp_path / "store")[it.keys(ids)[1][32:48]]
            flip(file, offset + 1000)
            warm = await it.generate(ids, 20, path)  # type: ignore[arg-type]
            assert warm.tokens == right(it, warm, 20)
            assert warm.stats.hit_tokens == 128


async def test_one_flipped_byte_in_a_buffer_changes_the_answer(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(500, 3)
        run = await it.begin(ids, Sampling(max_tokens=4, seed=0))
        request = it.decode._requests.get(run.attempt)
        assert request is not None
        real = it.decode._store_prompt

        def flip(*args: object) -> None:
            it.decode.arena.view(request.slots[0])[100] ^= 1
            real(*args)  # type: ignore[arg-type]

        it.decode._store_prompt = flip  # type: ignore[method-assign,assignment]
        await it.pair(run, "none", 0, 0)
        await asyncio.wait_for(run.over.wait(), 60)
        assert run.tokens[:1] == right(it, run, 4)[:1]
        assert run.tokens != right(it, run, 4)


async def test_a_decode_node_that_is_gone_loses_the_attempt_and_frees_the_prefill_node(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, cnic_bandwidth=5_000_000, transfer_deadline_s=1.0) as it:
        run = await it.begin(prompt(3000, 1), Sampling(max_tokens=10, seed=0))
        await it.pair(run, "none", 0, 0)
        await asyncio.wait_for(run.prefilling.wait(), 60)
        await it.decode.cnic_endpoints[0].close()
        await asyncio.wait_for(run.over.wait(), 60)
        assert run.lost is not None
        assert run.lost.retry
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_tokens_that_were_lost_on_the_bus_come_again_while_decoding_goes_on(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, synthetic={"decode_step_s": 0.02}) as it:
        run = await it.begin(prompt(100, 1), Sampling(max_tokens=1000, seed=0))
        await it.pair(run, "none", 0, 0)
        await until(lambda: len(run.tokens) >= 3)
        it.events_to_lose = 2
        await until(lambda: not it.events_to_lose)
        had = len(run.tokens)
        await until(lambda: len(run.tokens) > had + 10)
        assert run.finish is None
        assert run.tokens == right(it, run, len(run.tokens))
        await it.tell("d0", control.Abort(run.attempt, "enough"))
        await it.idle()


def blocks_by_key(store: Path) -> dict[bytes, tuple[Path, int]]:
    """File and offset of the stored blocks."""
    return {key: place for (_, key), place in stored(store).items()}


async def lose(it: Rig, store: Path, key: bytes) -> None:
    """Have the shard give up a block."""
    file, offset = blocks_by_key(store)[key]
    flip(file, offset)
    spec = it.spec
    space = Namespace(spec.fingerprint, spec.geometry.full_block_bytes)
    it.shard._disk.suspect(space, [key])
    await until(lambda: it.shard.status().counters["blocks"] and key not in blocks_by_key(store))
