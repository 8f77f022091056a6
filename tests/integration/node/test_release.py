"""What fails or is aborted inside a node gives back all that it held, and strands nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.nats import NatsServer
from tests.support.rig import prompt, rig, right
from tests.support.wait import until

from dualpath.kvstore.api import WriteStatus
from dualpath.memory.device import DeviceBuffer
from dualpath.tasks import finish
from dualpath.transport.api import LinkError, TransportError
from dualpath.wire import control, data
from dualpath.wire.codec import encode
from dualpath.wire.types import Address, Attempt, FinishReason, ReadPath, Sampling

PATHS: tuple[ReadPath, ...] = ("none", "prefill", "decode", "split")


async def test_memory_is_free_before_the_scheduler_has_heard_of_the_loss(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, cnic_bandwidth=5_000_000, transfer_deadline_s=1.0) as it:
        ids = prompt(3000, 1)
        await it.generate(ids[:1000], 2)
        it.hears_losses = False
        run = await it.begin(ids, Sampling(max_tokens=10, seed=0))
        await it.pair(run, "prefill", 15, 15)
        await asyncio.wait_for(run.prefilling.wait(), 60)
        assert it.prefill.arena.pool_use().used == 15
        await it.decode.cnic_endpoints[0].close()
        await asyncio.wait_for(run.over.wait(), 60)
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
            grant = encode(data.Grant(run.attempt, ((0, 0),), 0, 64, 1))
            with pytest.raises(TransportError, match="takes no grants"):
                await it.decode.on_link(0, peer, grant)
            refused.set()
            await revoke(key)

        endpoint.revoke = grant_and_revoke  # type: ignore[method-assign]
        await it.tell("d0", control.Abort(run.attempt, "the client is gone"))
        await asyncio.wait_for(refused.wait(), 60)
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
            await asyncio.wait_for(run.prefilling.wait(), 60)
        await until(lambda: len(engine._waiting) == 2)
        engine.parts.budget.give(engine.parts.budget.total)
        engine._wake.set()
        with pytest.raises(MemoryError):
            await asyncio.wait_for(asyncio.shield(it.prefill.failure), 60)
        await asyncio.wait_for(it.prefill.close(), 60)
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
        await asyncio.wait_for(behind.over.wait(), 60)
        assert behind.tokens == right(it, behind, 2)
        await it.idle()


@pytest.mark.parametrize("blocks", [-1, 3])
async def test_a_share_that_cannot_be_loses_the_attempt(
    nats_server: NatsServer, tmp_path: Path, blocks: int
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        on_link = it.prefill.on_link

        async def lie(engine: int, peer: Address, payload: bytes) -> None:
            said = data.link(payload)
            assert isinstance(said, data.LoadDone)
            await on_link(engine, peer, encode(replace(said, blocks=blocks)))

        it.prefill.on_link = lie  # type: ignore[method-assign]
        run = await it.begin(ids, Sampling(max_tokens=2, seed=0))
        await it.pair(run, "split", 4, 2)
        await asyncio.wait_for(run.over.wait(), 60)
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


async def test_aborted_while_it_waits_for_hbm_it_leaves_the_line(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    block = 64 * 8 * 256
    async with rig(
        nats_server,
        tmp_path,
        max_context=512,
        decode_hbm=8 * block,
        synthetic={"decode_step_s": 0.01},
    ) as it:
        first = await it.begin(prompt(300, 1), Sampling(max_tokens=100, seed=0))
        await it.pair(first, "none", 0, 0)
        await until(lambda: "decode" in first.phases)
        second = await it.begin(prompt(300, 2), Sampling(max_tokens=100, seed=0))
        await it.pair(second, "none", 0, 0)
        await until(lambda: "handoff" in second.phases)
        await it.tell("d0", control.Abort(second.attempt, "the client is gone"))
        await until(lambda: it.decode.held() == (first.attempt,))
        assert it.decode._engines[0].ledger.promised_tokens == 0
        await asyncio.wait_for(first.over.wait(), 60)
        assert first.tokens == right(it, first, 100)
        await it.idle()


async def test_aborted_right_behind_its_grant_of_hbm_it_wakes_those_that_wait_for_its_end(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """A row that is to grow into what is just being admitted sits out until that is resident, or gone."""
    async with rig(nats_server, tmp_path) as it:
        run = await it.begin(prompt(300, 1), Sampling(max_tokens=2, seed=0))
        engine, request = it.decode._engines[0], it.decode._requests.get(run.attempt)
        assert request is not None
        wake, woken = engine._wake.set, list[bool]()

        def set_and_told() -> None:
            woken.append(True)
            wake()

        engine._wake.set = set_and_told  # type: ignore[method-assign]
        other = Attempt("other", 1)
        assert engine.ledger.allocate(other, engine.ledger.capacity_tokens)
        taking = asyncio.create_task(engine._take_hbm(request))
        await until(lambda: engine._handoffs)
        engine.ledger.release(other)
        engine._grant_hbm()
        assert engine.ledger.allocated_tokens
        # Before its task goes on.
        taking.cancel()
        await asyncio.wait({taking})
        assert taking.cancelled()
        assert (woken, engine.ledger.allocated_tokens) == ([True], 0)
        await it.tell("d0", control.Abort(run.attempt, "the client is gone"))
        await it.idle()


async def test_aborted_while_a_slow_shard_takes_its_blocks_their_slots_are_held_until_it_has(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        write, taken, go = it.decode.store.write, asyncio.Event(), asyncio.Event()

        async def slow_write(
            keys: Sequence[bytes],
            blocks: Sequence[memoryview],
            *,
            deadline_s: float,
            depth: int = 0,
        ) -> list[WriteStatus]:
            taken.set()
            await go.wait()
            return await write(keys, blocks, deadline_s=deadline_s, depth=depth)

        it.decode.store.write = slow_write  # type: ignore[method-assign]
        ids = prompt(300, 1)
        run = await it.begin(ids, Sampling(max_tokens=2000, seed=0))
        await it.pair(run, "none", 0, 0)
        await asyncio.wait_for(taken.wait(), 60)
        await until(lambda: it.decode.arena.reserved_use().used > 0)
        for node in ("p0", "d0"):
            await it.tell(node, control.Abort(run.attempt, "the client is gone"))
        await until(lambda: not it.decode.held())
        reserved = it.decode.arena.reserved_use().used
        assert it.decode.arena.pool_use().used == 4 + reserved, "the prompt's full blocks, too"
        go.set()
        await it.idle()
        warm = await it.generate(ids, 5, "split")
        assert warm.stats.hit_tokens == 256
        assert warm.tokens == right(it, warm, 5)


async def test_a_push_that_fails_in_the_middle_loses_the_attempt_at_once(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        endpoint = it.decode.cnic_endpoints[0]
        write = endpoint.write

        async def fail_in_layer_three(*arguments: Any, **options: Any) -> None:
            if options.get("imm") == 3:
                raise LinkError("on purpose")
            await write(*arguments, **options)

        endpoint.write = fail_in_layer_three  # type: ignore[method-assign]
        run = await it.generate(ids, 5, "decode")
        # The prefill node may be told of the failure over the link and say so before d0 is heard.
        said = ("d0", "transfer", True)
        await until(lambda: said in [(loss.node_id, loss.code, loss.retry) for loss in run.losses])
        await it.tell("p0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_a_slow_transfer_is_no_stalled_one(nats_server: NatsServer, tmp_path: Path) -> None:
    """All layers together take far longer than one may, and come one after another."""
    async with rig(
        nats_server, tmp_path, cnic_bandwidth=400_000, transfer_deadline_s=0.1, layerwise=False
    ) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        run = await it.generate(ids, 5, "decode")
        assert run.lost is None
        assert run.tokens == right(it, run, 5)
        await it.idle()


async def test_one_stalled_transfer_is_noticed_though_nothing_else_happens(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, transfer_deadline_s=0.2) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        on_link = it.decode.on_link

        async def lose_grants(engine: int, peer: Address, payload: bytes) -> None:
            if not isinstance(data.link(payload), data.Grant):
                await on_link(engine, peer, payload)

        it.decode.on_link = lose_grants  # type: ignore[method-assign]
        run = await it.generate(ids, 5, "decode")
        assert run.lost is not None
        assert (run.lost.node_id, run.lost.retry) == ("p0", True)
        assert "did not arrive from d0" in run.lost.reason
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_slow_copies_and_stores_never_meet_memory_that_is_used_again(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    block, source = 64 * 8 * 256, random.Random(5)
    async with rig(
        nats_server,
        tmp_path,
        max_context=512,
        write_back_blocks=1,
        prefill_buffer=8 * block,
        decode_buffer=9 * block,
        prefill_hbm=3 * 512 * 256,
        decode_hbm=16 * block,
    ) as it:
        for node in (it.prefill, it.decode):
            node.copier.run = delayed(node.copier.run, source)  # type: ignore[method-assign]
            node.store.read = delayed(node.store.read, source)  # type: ignore[method-assign]
            node.store.write = delayed(node.store.write, source)  # type: ignore[method-assign]
        prompts = [prompt(100 + 97 * i, i) for i in range(4)]
        await asyncio.gather(*(it.generate(ids, 5) for ids in prompts))
        runs = await asyncio.gather(
            *(it.generate(prompts[i % 4], 70, PATHS[i % 4]) for i in range(4, 19))
        )
        for run in runs:
            assert run.lost is None or run.lost.code == "preempted"
            assert run.tokens == right(it, run, 70)[: len(run.tokens)]
        await it.idle()


def delayed(call: Callable[..., Awaitable[Any]], source: random.Random) -> Callable[..., Any]:
    """`call`, begun late and reported late."""

    async def late(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.01 * source.random())
        try:
            return await call(*arguments, **options)
        finally:
            await finish(asyncio.sleep(0.01 * source.random()))

    return late


async def test_a_layer_that_leaves_late_is_not_written_over_by_one_that_takes_its_place(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """Writes end in any order: layers 1 and 2 have left the ring of three, layer 0 has not."""
    async with rig(nats_server, tmp_path, ring_layers=3) as it:
        endpoint = it.prefill.cnic_endpoints[0]
        write, others = endpoint.write, asyncio.Semaphore(0)
        calls = count()

        async def first_last(*args: Any, **kwargs: Any) -> None:
            if next(calls):
                await write(*args, **kwargs)
                others.release()
                return
            await others.acquire()
            await others.acquire()
            # Turns enough for a layer to be computed, if it may.
            for _ in range(500):
                await asyncio.sleep(0)
            await write(*args, **kwargs)

        endpoint.write = first_last  # type: ignore[method-assign]
        run = await it.generate(prompt(300, 1), 5)
        assert run.tokens == right(it, run, 5)
        await it.idle()


async def test_a_ring_is_kept_until_all_writes_of_a_layer_have_ended_though_one_has_failed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        ids = prompt(300, 1)
        await it.generate(ids, 2)
        await it.idle()
        endpoint, budget = it.prefill.cnic_endpoints[0], it.prefill._engines[0].parts.budget
        write, calls = endpoint.write, count()
        begun, failed, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def one_fails(*args: Any, **kwargs: Any) -> None:
            match next(calls):
                case 0:
                    await begun.wait()
                    failed.set()
                    raise LinkError("on purpose")
                case 1:
                    begun.set()
                    await finish(go.wait())
                case _:
                    await write(*args, **kwargs)

        endpoint.write = one_fails  # type: ignore[method-assign]
        # The PE's share of a layer is one write, what it computes another.
        run = await it.begin(ids, Sampling(max_tokens=5, seed=0))
        await it.pair(run, "split", 4, 2)
        await failed.wait()
        # Turns enough for the ring to be freed, if it may.
        for _ in range(500):
            await asyncio.sleep(0)
        assert budget.used
        go.set()
        await asyncio.wait_for(run.over.wait(), 60)
        await it.tell("d0", control.Abort(run.attempt, "lost"))
        await it.idle()


async def test_a_row_that_cannot_grow_gives_back_what_it_was_to_grow_into(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path) as it:
        (copies,) = it.decode.device_copies

        async def fails(buffer: DeviceBuffer, start: int, stop: int) -> None:
            raise LinkError("on purpose")

        to_host, copies.to_host = copies.to_host, fails  # type: ignore[method-assign]
        # The second token fills its block, and the row.
        lost = await it.generate(prompt(4 * it.geometry.block_tokens - 1, 1), 8)
        assert lost.lost is not None
        assert "on purpose" in lost.lost.reason
        await it.tell("p0", control.Abort(lost.attempt, "lost"))
        await it.idle()
        copies.to_host = to_host  # type: ignore[method-assign]
        again = await it.generate(lost.ids, 8)
        assert again.tokens == right(it, again, 8)
        await it.idle()
