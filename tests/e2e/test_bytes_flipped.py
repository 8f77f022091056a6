"""One flipped byte, wherever KV lies or travels, is found, or changes the answer: so right answers are proof.

Between storage and nodes a checksum finds it. Behind that nothing does, and nothing needs to on real machines
(memory and networks have their own); there the synthetic engines' answers tell.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.support.agents import random_ids
from tests.support.nats import NatsServer
from tests.support.proxy import Flip, proxy
from tests.support.rig import Rig, Run, rig

from dualpath.decode.node import DecodeNode
from dualpath.kvstore.api import WriteStatus
from dualpath.model.api import DecodeRow, LayerView, PrefillForward, PrefillRow
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.node.reading import Share
from dualpath.prefill.node import PrefillNode
from dualpath.wire.types import ReadPath, Sampled, Sampling

TOKENS = 500
HITS = 448
N = 12


@pytest.fixture
async def it(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(nats_server, tmp_path, same_host="sockets") as started:
        yield started
        await started.idle()


def prompt(seed: int) -> list[int]:
    return random_ids(random.Random(seed), TOKENS)


async def store(it: Rig, ids: Sequence[int]) -> None:
    """Let all full blocks of a prompt be in storage."""
    await it.generate(ids, 2)
    await it.idle()


def right(it: Rig, ids: Sequence[int], n: int = N) -> list[int]:
    return reference_tokens(it.spec, ids, n, Sampling(max_tokens=n, seed=0))


def is_wrong_from(it: Rig, run: Run, index: int) -> bool:
    """The first `index` tokens are right and all others (where chance does not make them so) wrong."""
    expected = right(it, run.ids)
    assert len(run.tokens) == N
    pairs = list(zip(run.tokens, expected, strict=True))
    return all(a == b for a, b in pairs[:index]) and all(a != b for a, b in pairs[index:])


# ── in a buffer ─────────────────────────────────────────────────────────────────────────────────────────
def damage_reads(node: PrefillNode | DecodeNode, at: int) -> None:
    """Flip a bit in the first block of each share that `node` reads, once it was verified."""
    real = node.read_share

    async def read(
        keys: Sequence[bytes], into: Sequence[memoryview], hot: Set[int] = frozenset()
    ) -> Share:
        share = await real(keys, into, hot)
        into[0][at] ^= 1
        return share

    node.read_share = read  # type: ignore[method-assign]


@pytest.mark.parametrize("at", [0, 70_000, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("path", ["prefill", "decode"])
async def test_in_a_slot_that_was_read(it: Rig, path: ReadPath, at: int) -> None:
    ids = prompt(1)
    await store(it, ids)
    damage_reads(it.prefill if path == "prefill" else it.decode, at)
    run = await it.generate(ids, N, path)
    assert run.stats.hit_tokens == HITS
    assert is_wrong_from(it, run, 0)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_in_either_share_of_a_split_read(it: Rig, side: str) -> None:
    ids = prompt(2)
    await store(it, ids)
    damage_reads(it.prefill if side == "prefill" else it.decode, 12_345)
    run = await it.generate(ids, N, "split")
    assert run.stats.hit_tokens == HITS
    assert is_wrong_from(it, run, 0)


def damage_ring(node: PrefillNode, layer: int, at: int) -> None:
    """Flip a bit of `layer` when it has arrived on the prefill device, before it is computed."""
    backend = node.backends[0]
    real = backend.begin_prefill

    async def begin(rows: Sequence[PrefillRow]) -> PrefillForward:
        forward = await real(rows)
        compute = forward.layer

        async def damaged(index: int, kv: Sequence[LayerView]) -> None:
            if index == layer:
                kv[0].buffer.wire[kv[0].offset + at] ^= 1
            await compute(index, kv)

        forward.layer = damaged  # type: ignore[method-assign]
        return forward

    backend.begin_prefill = begin  # type: ignore[method-assign]


@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("layer", [0, 3, 7])
async def test_in_the_ring_of_a_prefill_device(
    nats_server: NatsServer, tmp_path: Path, layer: int, layerwise: bool
) -> None:
    async with rig(nats_server, tmp_path, layerwise=layerwise) as it:
        ids = prompt(3)
        await store(it, ids)
        damage_ring(it.prefill, layer, HITS * 256 - 1)
        run = await it.generate(ids, N, "decode")
        assert run.tokens[0] != right(it, ids)[0]
        await it.idle()


def damage_at_handoff(node: DecodeNode, slot: int) -> None:
    """Flip a bit of a request's slot when all its KV has come, before it is copied to the device."""
    real = node._store_prompt

    def store(request: object, done: object) -> None:
        node.arena.view(request.slots[slot])[100] ^= 1  # type: ignore[attr-defined]
        real(request, done)  # type: ignore[arg-type]

    node._store_prompt = store  # type: ignore[method-assign]


@pytest.mark.parametrize("slot", [0, -1], ids=["hit", "new"])
async def test_in_a_slot_of_the_decode_node_after_prefill(it: Rig, slot: int) -> None:
    ids = prompt(4)
    await store(it, ids)
    damage_at_handoff(it.decode, slot)
    run = await it.generate(ids, N, "prefill")
    assert is_wrong_from(it, run, 1)


def damage_decode(node: DecodeNode, step: int, at: Callable[[DecodeRow], int]) -> None:
    """Flip a bit in the decode device's memory before a request's step number `step`."""
    backend = node.backends[0]
    real = backend.decode
    steps = 0

    async def decode(rows: Sequence[DecodeRow]) -> list[Sampled | None]:
        nonlocal steps
        if steps == step:
            rows[0].kv.wire[at(rows[0])] ^= 1
        steps += 1
        return await real(rows)

    backend.decode = decode  # type: ignore[method-assign]


@pytest.mark.parametrize("layer", [0, 7])
async def test_in_the_memory_of_a_decode_device(it: Rig, layer: int) -> None:
    ids = prompt(5)
    geometry = it.geometry
    damage_decode(it.decode, 0, lambda row: geometry.flat_offset(row.capacity, layer, 77))
    run = await it.generate(ids, N)
    assert is_wrong_from(it, run, 1)


async def test_in_the_memory_of_a_decode_device_when_it_is_copied_to_a_larger_place(
    it: Rig,
) -> None:
    """While it lies, the engine goes on with the digests that it has made."""
    ids = prompt(6)
    geometry = it.geometry
    room = geometry.blocks_for(TOKENS + 1) * geometry.block_tokens - TOKENS
    damage_decode(it.decode, 5, lambda row: geometry.flat_offset(row.capacity, 4, 77))
    run = await it.generate(ids, 40)
    expected = right(it, ids, 40)
    assert run.tokens[: room + 1] == expected[: room + 1]
    assert all(a != b for a, b in zip(run.tokens[room + 1 :], expected[room + 1 :], strict=True))


async def test_in_a_slot_of_the_decode_node_between_two_chunks(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with rig(nats_server, tmp_path, chunk_tokens=200) as it:
        begin = it.prefill.backends[0].begin_prefill
        last = it.geometry.n_layers - 1

        async def begin_damaged(rows: Sequence[PrefillRow]) -> PrefillForward:
            if rows[0].prefix_tokens == 200:
                # The last layer goes to the prefill device only when an earlier one has left it.
                (request,) = it.decode._requests
                it.decode.arena.view(request.slots[0])[it.geometry.layer_offset(last)] ^= 1
            return await begin(rows)

        it.prefill.backends[0].begin_prefill = begin_damaged  # type: ignore[method-assign]
        run = await it.generate(prompt(11), N)
        assert is_wrong_from(it, run, 0)
        await it.idle()


@pytest.mark.parametrize("decoded", [False, True], ids=["prompt", "decoded"])
async def test_in_a_slot_from_which_a_block_is_stored(it: Rig, decoded: bool) -> None:
    """Too early for the checksum: whoever reads the block later gets a wrong answer, and no other does."""
    write = it.decode.store.write

    async def write_damaged(
        keys: Sequence[bytes], blocks: Sequence[memoryview], *, deadline_s: float, depth: int = 0
    ) -> list[WriteStatus]:
        # Blocks of the prompt come together, those that decoding fills one by one.
        if (len(keys) == 1) is decoded:
            (request,) = it.decode._requests
            await request.copied.wait()
            blocks[0][100] ^= 1
        return await write(keys, blocks, deadline_s=deadline_s, depth=depth)

    it.decode.store.write = write_damaged  # type: ignore[method-assign]
    cold = await it.generate(prompt(12), 80)
    await it.idle()
    ids = [*cold.ids, *cold.tokens]
    assert ids[TOKENS:] == right(it, cold.ids, 80)
    warm = await it.generate(ids, N, "prefill")
    assert is_wrong_from(it, warm, 0)
    other = await it.generate(prompt(13), N)
    assert other.tokens == right(it, other.ids)


# ── in a frame ──────────────────────────────────────────────────────────────────────────────────────────
@asynccontextmanager
async def between_engines(it: Rig, flip: Flip) -> AsyncIterator[None]:
    """All that the two engines say to each other passes proxies."""
    async with AsyncExitStack() as stack:
        for name, other in (("p0", "d0"), ("d0", "p0")):
            node = it.engines[name]
            engine = node.engines[0]
            port = await stack.enter_async_context(proxy(name, engine.address.port, other, flip))
            address = msgspec.structs.replace(engine.address, port=port)
            engines = (msgspec.structs.replace(engine, address=address),)
            it.engines[name] = msgspec.structs.replace(node, engines=engines)
        yield


@pytest.mark.parametrize("after", [0, 5])
async def test_in_a_frame_from_the_decode_to_the_prefill_node(it: Rig, after: int) -> None:
    ids = prompt(7)
    flip = Flip("d0", after)
    async with between_engines(it, flip):
        await store(it, ids)
        run = await it.generate(ids, N, "decode")
        assert flip.done is not None
        assert is_wrong_from(it, run, 0)
        await it.idle()


@pytest.mark.parametrize("after", [0, 5])
async def test_in_a_frame_from_the_prefill_to_the_decode_node(it: Rig, after: int) -> None:
    flip = Flip("p0", after)
    async with between_engines(it, flip):
        run = await it.generate(prompt(8), N)
        assert flip.done is not None
        assert is_wrong_from(it, run, 1)
        await it.idle()


@pytest.mark.parametrize("path", ["prefill", "decode", "split"])
async def test_in_a_frame_from_storage_it_is_found_and_computed(
    nats_server: NatsServer, tmp_path: Path, path: ReadPath
) -> None:
    flip = Flip("storage-0", after=1)
    between = partial(_before_shard, flip)
    async with rig(nats_server, tmp_path, before_shard=between) as it:
        ids = prompt(9)
        await store(it, ids)
        run = await it.generate(ids, N, path)
        assert flip.done is not None
        assert run.tokens == right(it, ids)
        assert run.stats.hit_tokens < HITS
        damaged = [
            node.metrics.blocks_read.labels(status="corrupt")._value.get()
            for node in (it.prefill, it.decode)
        ]
        assert sum(damaged) == 1
        await it.idle()
        again = await it.generate(ids, N, path)
        assert again.tokens == right(it, ids)
        assert again.stats.hit_tokens == HITS
        await it.idle()


async def test_in_a_frame_to_storage_it_is_not_stored(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    flip = Flip("node", after=1)
    async with rig(nats_server, tmp_path, before_shard=partial(_before_shard, flip)) as it:
        ids = prompt(10)
        cold = await it.generate(ids, N)
        assert flip.done is not None
        assert cold.tokens == right(it, ids)
        await it.idle()
        assert it.decode.counters()["blocks_not_stored"] == 1
        warm = await it.generate(ids, N, "prefill")
        assert warm.tokens == right(it, ids)
        assert warm.stats.hit_tokens < HITS
        await it.idle()


def _before_shard(flip: Flip, port: int) -> AbstractAsyncContextManager[int]:
    return proxy("storage-0", port, "node", flip)
