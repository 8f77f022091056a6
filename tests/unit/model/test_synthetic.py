"""The synthetic engine answers as its oracle says: cold, warm, chunked, resumed; and one wrong byte shows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.blocks import BlockKeys, KVGeometry, KVPart, root_key
from dualpath.memory.device import DeviceBuffer
from dualpath.model.api import DecodeRow, LayerView, PrefillRow
from dualpath.model.synthetic import INLINE_BYTES, SyntheticBackend, decode_s, prefill_s
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.settings import Settings, SyntheticProfile
from dualpath.wire.types import Sampling

GEOMETRY = KVGeometry(
    4, ((KVPart("k", 8), KVPart("v", 8)), (KVPart("latent", 13),), (KVPart("kv", 40),))
)
FAST = SyntheticProfile(forward_s=0, token_s=0, attention_s=0, decode_step_s=0)
GREEDY = Sampling(max_tokens=64, seed=0)


@dataclass(frozen=True)
class Spec:
    geometry: KVGeometry = GEOMETRY
    fingerprint: str = "synthetic-test"
    vocab_size: int = 1000


SPEC = Spec()
ROOT = root_key(SPEC.fingerprint)


def backend(profile: SyntheticProfile = FAST, spec: Spec = SPEC) -> SyntheticBackend:
    return SyntheticBackend(spec, Settings(model="synthetic", synthetic=profile))


class Request:
    """All layers of one request in one buffer, as a DE holds them, filled by prefills and decode steps."""

    def __init__(self, engine: SyntheticBackend, prompt: list[int], capacity: int) -> None:
        self.engine, self.prompt, self.capacity = engine, prompt, capacity
        self.geometry = engine.geometry
        self.kv: DeviceBuffer = engine.allocate(self.geometry.flat_bytes(capacity))
        self.tokens: list[int] = []

    def views(self) -> list[LayerView]:
        starts = self.geometry.row_starts
        return [LayerView(self.kv, self.capacity * start) for start in starts[:-1]]

    def prefill_row(
        self, prefix: int, stop: int, sampling: Sampling = GREEDY, index: int = 0
    ) -> PrefillRow:
        keys = BlockKeys(ROOT, self.geometry.block_tokens)
        keys.extend(self.prompt[:prefix])
        sample = sampling if stop == len(self.prompt) else None
        return PrefillRow(
            self.prompt[prefix:stop], prefix, sample, index, keys.parent, list(keys.tail)
        )

    def decode_row(self, sampling: Sampling = GREEDY) -> DecodeRow:
        keys = BlockKeys(ROOT, self.geometry.block_tokens)
        keys.extend(self.prompt)
        return DecodeRow(
            self.kv,
            self.capacity,
            len(self.prompt),
            self.tokens[-1],
            sampling,
            len(self.tokens),
            keys.parent,
            list(keys.tail),
        )


def advance(row: DecodeRow, token: int, keys: BlockKeys) -> None:
    """What a node does after a step."""
    keys.extend([row.last_token])
    row.parent_key, row.block_ids = keys.parent, list(keys.tail)
    row.tokens, row.last_token, row.index = row.tokens + 1, token, row.index + 1


async def run_prefill(
    engine: SyntheticBackend, requests: list[Request], rows: list[PrefillRow]
) -> list[int | None]:
    forward = await engine.begin_prefill(rows)
    views = [request.views() for request in requests]
    for layer in range(engine.geometry.n_layers):
        await forward.layer(layer, [view[layer] for view in views])
    return [None if s is None else s.token_id for s in await forward.finish()]


async def run_decode(engine: SyntheticBackend, request: Request, steps: int) -> list[int]:
    row = request.decode_row()
    keys = BlockKeys(ROOT, engine.geometry.block_tokens)
    keys.extend(request.prompt)
    for _ in range(steps):
        [sampled] = await engine.decode([row])
        assert sampled is not None
        request.tokens.append(sampled.token_id)
        advance(row, sampled.token_id, keys)
    return request.tokens


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 999), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29), max_size=3),
    steps=st.integers(0, 12),
)
def test_prefill_in_any_chunks_then_decode_gives_the_reference_tokens(
    prompt: list[int], cuts: set[int], steps: int
) -> None:
    async def scenario() -> None:
        engine = backend()
        request = Request(engine, prompt, len(prompt) + steps)
        first: int | None = None
        edges = [0, *sorted(cut for cut in cuts if cut < len(prompt)), len(prompt)]
        for prefix, stop in pairwise(edges):
            [first] = await run_prefill(engine, [request], [request.prefill_row(prefix, stop)])
        assert first is not None
        request.tokens = [first]
        await run_decode(engine, request, steps)
        assert request.tokens == reference_tokens(SPEC, prompt, steps + 1, GREEDY)
        engine.close()

    asyncio.run(scenario())


async def test_rows_of_one_batch_do_not_touch_each_other() -> None:
    engine = backend()
    prompts = [[1, 2, 3], [4] * 9, [7, 8]]
    requests = [Request(engine, prompt, 20) for prompt in prompts]
    firsts = await run_prefill(
        engine, requests, [r.prefill_row(0, len(r.prompt)) for r in requests]
    )
    for request, first in zip(requests, firsts, strict=True):
        assert first is not None
        request.tokens = [first]
    rows = [request.decode_row() for request in requests]
    seconds = await engine.decode(rows)
    for prompt, first, second in zip(prompts, firsts, seconds, strict=True):
        assert second is not None
        assert reference_tokens(SPEC, prompt, 2, GREEDY) == [first, second.token_id]
    engine.close()


@pytest.mark.parametrize("at", [0, 200, 439, 500, 700])
async def test_one_wrong_byte_of_cached_kv_changes_the_answer_of_prefill(at: int) -> None:
    engine = backend()
    prompt = list(range(12))
    request = Request(engine, prompt, 12)
    [right] = await run_prefill(engine, [request], [request.prefill_row(0, 12)])
    # Rows [0, 8) are cached, in every layer; spoil one byte of them and compute the rest again.
    cached = [
        12 * start + byte
        for layer, start in enumerate(GEOMETRY.row_starts[:-1])
        for byte in range(8 * GEOMETRY.row_bytes[layer])
    ]
    request.kv.wire[cached[at % len(cached)]] ^= 1
    [wrong] = await run_prefill(engine, [request], [request.prefill_row(8, 12)])
    assert right is not None
    assert wrong != right
    engine.close()


async def test_one_wrong_byte_after_handoff_changes_the_decoded_tokens() -> None:
    engine = backend()
    prompt = list(range(9))
    request = Request(engine, prompt, 16)
    [first] = await run_prefill(engine, [request], [request.prefill_row(0, 9)])
    assert first is not None
    request.tokens = [first]
    request.kv.wire[16 * GEOMETRY.row_starts[2] + 5] ^= 0x80
    await run_decode(engine, request, 4)
    assert request.tokens[1:] != reference_tokens(SPEC, prompt, 5, GREEDY)[1:]
    engine.close()


async def test_a_later_attempt_with_the_generated_tokens_in_its_prompt_continues_the_stream() -> (
    None
):
    engine = backend()
    prompt = [5, 6, 7, 8, 9]
    whole = reference_tokens(SPEC, prompt, 10, GREEDY)
    again = Request(engine, [*prompt, *whole[:6]], 16)
    [next_token] = await run_prefill(engine, [again], [again.prefill_row(0, 11, index=6)])
    assert next_token == whole[6]
    assert reference_tokens(SPEC, [*prompt, *whole[:6]], 4, GREEDY, generated=6) == whole[6:]
    engine.close()


async def test_a_step_that_was_given_up_can_be_repeated() -> None:
    engine = backend()
    prompt = [5, 6, 7]
    request = Request(engine, prompt, 8)
    [first] = await run_prefill(engine, [request], [request.prefill_row(0, 3)])
    assert first is not None
    request.tokens = [first]
    row = request.decode_row()
    once = await engine.decode([row])
    assert await engine.decode([row]) == once
    engine.close()


async def test_long_work_ends_before_a_cancelled_call_does() -> None:
    wide = Spec(KVGeometry(4, ((KVPart("kv", 4 * INLINE_BYTES),),)))
    engine = backend(spec=wide)
    request = Request(engine, list(range(40)), 40)
    request.kv.wire[-1] = 0
    forward = await engine.begin_prefill([request.prefill_row(0, 40)])
    running = asyncio.create_task(forward.layer(0, request.views()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bytes(request.kv.wire[-64:]) != bytes(64)
    engine.close()


def test_time_follows_tokens_and_attention() -> None:
    profile = SyntheticProfile(forward_s=1000, token_s=10, attention_s=0.001, decode_step_s=7)
    rows = [PrefillRow([1, 2, 3], 8, None), PrefillRow([1], 0, None)]
    # The three attend to 9, 10 and 11 tokens, the one to itself.
    assert prefill_s(profile, rows) == pytest.approx(1000 + 40 + 0.031)
    engine = backend()
    decoding = Request(engine, [1, 2, 3, 4], 8)
    decoding.tokens = [5]
    assert decode_s(profile, [decoding.decode_row()] * 2) == pytest.approx(7 + 0.010)
    engine.close()


async def test_misuse_is_refused_with_a_sentence() -> None:
    engine = backend()
    request = Request(engine, [1, 2, 3, 4, 5], 5)
    with pytest.raises(ValueError, match="after the last full block of 5 tokens"):
        await engine.begin_prefill([PrefillRow([9], 5, GREEDY)])
    forward = await engine.begin_prefill([request.prefill_row(0, 5)])
    with pytest.raises(RuntimeError, match="layer 1 was run where layer 0 is next"):
        await forward.layer(1, [request.views()[1]])
    with pytest.raises(RuntimeError, match="before its layer 0"):
        await forward.finish()
    request.tokens = [1]
    with pytest.raises(ValueError, match="grow it first"):
        await engine.decode([request.decode_row()])
    engine.close()


@pytest.mark.parametrize(("transport", "shared"), [("tcp", True), ("rdma", False)])
def test_device_memory_is_for_others_to_read_only_where_links_can(
    transport: Literal["tcp", "rdma"], shared: bool
) -> None:
    given = Settings(transport=transport, same_host="shared-memory", prefill_hbm=1 << 20)
    engine = SyntheticBackend(SPEC, given)
    assert (engine.memory is not None) is shared
    engine.close()
