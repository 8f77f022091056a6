"""What goes wrong between two nodes ends in right tokens or a lost attempt, and never in held memory."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.nats import NatsServer
from tests.support.rig import Rig, Run, rig
from tests.support.wait import until

from dualpath.memory.device import DeviceBuffer
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.transport.api import TransportError
from dualpath.wire import control, data
from dualpath.wire.codec import encode
from dualpath.wire.types import Attempt, FinishReason, ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("none", "prefill", "decode", "split")
MIB = 1 << 20


def prompt(n: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(300, 30_000) for _ in range(n)]


def right(it: Rig, run: Run, n: int) -> list[int]:
    return reference_tokens(it.spec, run.ids, n, Sampling(max_tokens=n, seed=0))


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
            files = await asyncio.to_thread(blocks_by_key, tmp_path / "store")
            keys = it.keys(ids)[1]
            files[keys[16 * hole : 16 * hole + 16]].unlink()
            warm = await it.generate(ids, 20, path)  # type: ignore[arg-type]
            assert warm.tokens == right(it, warm, 20)
            assert warm.stats.hit_tokens == 64 * hole
            await it.idle()
            healed = await it.generate(ids, 20, path)  # type: ignore[arg-type]
            assert healed.tokens == right(it, healed, 20)


async def test_one_flipped_byte_on_disk_is_found_and_computed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        for seed, path in enumerate(("prefill", "decode")):
            ids = prompt(500, 50 + seed)
            await it.generate(ids, 2)
            files = await asyncio.to_thread(blocks_by_key, tmp_path / "store")
            file = files[it.keys(ids)[1][32:48]]
            data = bytearray(file.read_bytes())
            data[-1000] ^= 1
            file.write_bytes(data)
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
        await asyncio.wait_for(run.over.wait(), 20)
        assert run.tokens[:1] == right(it, run, 4)[:1]
        assert run.tokens != right(it, run, 4)


async def test_a_decode_node_that_is_gone_loses_the_attempt_and_frees_the_prefill_node(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, cnic_bandwidth=5_000_000, transfer_deadline_s=1.0) as it:
        run = await it.begin(prompt(3000, 1), Sampling(max_tokens=10, seed=0))
        await it.pair(run, "none", 0, 0)
        await asyncio.wait_for(run.prefilling.wait(), 10)
        await it.decode.cnic_endpoints[0].close()
        await asyncio.wait_for(run.over.wait(), 20)
        assert run.lost is not None
        assert run.lost.retry
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_memory_is_free_before_the_scheduler_has_heard_of_the_loss(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, cnic_bandwidth=5_000_000, transfer_deadline_s=1.0) as it:
        ids = prompt(3000, 1)
        await it.generate(ids[:1000], 2)
        it.hears_losses = False
        run = await it.begin(ids, Sampling(max_tokens=10, seed=0))
        await it.pair(run, "prefill", 15, 15)
        await asyncio.wait_for(run.prefilling.wait(), 10)
        assert it.prefill.arena.pool_use().used == 15
        await it.decode.cnic_endpoints[0].close()
        await asyncio.wait_for(run.over.wait(), 20)
        await until(lambda: not it.prefill.arena.pool_use().used, what="the PE's slots are free")
        assert it.prefill.held() == (run.attempt,)
        it.hears_losses = True
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_an_abort_right_behind_its_assignment_leaves_no_promise(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(100, 1)
        root, keys = it.keys(ids)
        attempt, sampling = Attempt("r", 1), Sampling(max_tokens=2, seed=0)
        assign = control.AssignDecode(attempt, "gw", 0, 100, 0, root, keys, sampling, 60.0)
        # The task of the attempt has not taken its first step when the abort comes.
        await it.decode.on_control(assign)
        await it.decode.on_control(control.Abort(attempt, "the client is gone"))
        await it.idle()


async def test_a_grant_that_comes_while_slots_are_given_back_is_refused(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        run = await it.begin(prompt(200, 1), Sampling(max_tokens=2, seed=0))
        endpoint, peer = it.decode.cnic_endpoints[0], it.prefill.cnic_endpoints[0].address
        revoke, refused = endpoint.revoke, asyncio.Event()

        async def grant_and_revoke(key: int) -> None:
            grant = encode(data.Grant(run.attempt, 0, 0, 64, 1, 0, 0))
            with pytest.raises(TransportError, match="takes no grants"):
                await it.decode.on_link(0, peer, grant)
            refused.set()
            await revoke(key)

        endpoint.revoke = grant_and_revoke  # type: ignore[method-assign]
        await it.tell("d0", control.Abort(run.attempt, "the client is gone"))
        await asyncio.wait_for(refused.wait(), 10)
        await it.idle()


async def test_an_error_in_a_decode_nodes_own_code_loses_the_attempt_and_its_stream(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:

        async def fail(*_: object) -> FinishReason:
            raise RuntimeError("on purpose")

        it.decode._decode_rest = fail  # type: ignore[method-assign,assignment]
        run = await it.generate(prompt(100, 1), 5)
        assert run.lost is not None
        assert (run.lost.code, run.lost.retry) == ("internal", True)
        await it.idle()
        assert {pool.name: pool.used for pool in it.decode.pools()}["token_streams"] == 0


async def test_an_error_while_the_first_token_is_published_loses_the_attempt(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, layerwise=False) as it:

        async def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        publish = it.prefill._publish
        it.prefill._publish = fail  # type: ignore[method-assign,assignment]
        run = await it.generate(prompt(100, 1), 5)
        assert run.lost is not None
        assert (run.lost.node_id, run.lost.code, run.lost.retry) == ("p0", "internal", True)
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()
        it.prefill._publish = publish  # type: ignore[method-assign]
        again = await it.generate(prompt(100, 1), 5)
        assert again.tokens == right(it, again, 5)


async def test_a_prefill_node_whose_device_gives_no_memory_fails_and_can_be_closed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        backend = it.prefill.backends[0]
        allocate = backend.allocate
        given: list[int] = []

        def run_out(nbytes: int) -> DeviceBuffer:
            if given:
                raise MemoryError("on purpose")
            given.append(nbytes)
            return allocate(nbytes)

        backend.allocate = run_out  # type: ignore[method-assign]
        engine = it.prefill._engines[0]
        # Both are in the forward whose second row cannot be made.
        await it.idle()
        assert engine.parts.budget.try_take(engine.parts.budget.total)
        runs = [await it.begin(ids, Sampling(max_tokens=5, seed=0)) for _ in range(2)]
        for run in runs:
            await it.pair(run, "prefill", 4, 4)
            await asyncio.wait_for(run.prefilling.wait(), 10)
        await until(lambda: len(engine._waiting) == 2)
        engine.parts.budget.give(engine.parts.budget.total)
        engine._wake.set()
        with pytest.raises(MemoryError):
            await asyncio.wait_for(asyncio.shield(it.prefill.failure), 10)
        await asyncio.wait_for(it.prefill.close(), 10)
        assert not any(pool.used for pool in it.prefill.pools())


async def test_who_waits_behind_an_aborted_head_is_served(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        engine = it.prefill._engines[0]
        budget, small = engine.parts.budget, prompt(64, 1)
        assert budget.try_take(budget.total)
        head = await it.begin(prompt(1000, 2), Sampling(max_tokens=2, seed=0))
        await it.pair(head, "none", 0, 0)
        await until(lambda: len(engine._waiting) == 1)
        behind = await it.begin(small, Sampling(max_tokens=2, seed=0))
        await it.pair(behind, "none", 0, 0)
        await until(lambda: len(engine._waiting) == 2)
        await until(lambda: not engine._wake.is_set())
        # What is free now the engine finds out by the head's end alone.
        budget.give(budget.total)
        for node in ("p0", "d0"):
            await it.tell(node, control.Abort(head.attempt, "the client is gone"))
        await asyncio.wait_for(behind.over.wait(), 10)
        assert behind.tokens == right(it, behind, 2)
        await it.idle()


@pytest.mark.parametrize("blocks", [-1, 3])
async def test_a_share_that_cannot_be_loses_the_attempt(
    nats_server: NatsServer, tmp_path: Path, blocks: int
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        run = await it.begin(ids, Sampling(max_tokens=2, seed=0))
        # Comes before the assignment, and thus before what the decode node will say itself.
        peer = it.decode.cnic_endpoints[0].address
        await it.prefill.on_link(0, peer, encode(data.LoadDone(run.attempt, blocks, 0, 0.0)))
        await it.pair(run, "split", 4, 2)
        await asyncio.wait_for(run.over.wait(), 10)
        assert run.lost is not None
        assert f"has read {blocks} of 2 blocks" in run.lost.reason
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_a_node_that_stops_takes_no_more_work(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(100, 1)
        root, keys = it.keys(ids)
        sampling = Sampling(max_tokens=2, seed=0)
        closing = asyncio.create_task(it.decode.close())
        answer = await it.tell(
            "d0",
            control.AssignDecode(Attempt("r", 1), "gw", 0, 100, 0, root, keys, sampling, 60.0),
        )
        await closing
        assert isinstance(answer, control.Refused)
        assert (answer.code, it.decode.held()) == ("unavailable", ())


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


def blocks_by_key(store: Path) -> dict[bytes, Path]:
    """Files of stored blocks by key; the name of a block's file is its key in hexadecimal."""
    found = {}
    for path in store.rglob("*"):
        if path.is_file() and len(path.stem) == 32:
            found[bytes.fromhex(path.stem)] = path
    return found
