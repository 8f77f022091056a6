"""The torch engine against plain `transformers`: float32, greedy, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.engine import (
    GREEDY,
    Request,
    decode_step,
    generate,
    hand_over,
    prefill,
    prefill_step,
)
from tests.support.reference import reference_greedy

from dualpath.model.api import LayerView, PrefillRow
from dualpath.model.backends import load_backend
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.model.torch_backend import TorchBackend
from dualpath.settings import Settings
from dualpath.wire.types import Sampling

LENGTHS = (1, 63, 64, 65, 128, 129)
NEW = 64


def prompt(length: int, seed: int = 0) -> list[int]:
    random = np.random.RandomState(1000 * seed + length)
    return [int(token) for token in random.randint(0, 256, length)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def settings(directory: Path) -> Settings:
    return Settings(model="tiny", dtype="float32", device="cpu", threads=1, home=directory)


@pytest.fixture(scope="module")
def model_dir(settings: Settings) -> Path:
    return prepare_model(settings, lambda line: None)


@pytest.fixture(scope="module")
def backend(settings: Settings, model_dir: Path) -> Iterator[TorchBackend]:
    loaded = load_backend(load_spec(settings), settings)
    assert isinstance(loaded, TorchBackend)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("length", LENGTHS)
async def test_cold_prompt_in_one_chunk(
    backend: TorchBackend, model_dir: Path, length: int
) -> None:
    request = Request(prompt(length))
    await prefill(backend, request)
    [answer] = await generate(backend, [request], NEW)
    assert answer == reference_greedy(model_dir, request.prompt, NEW)


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
async def test_cold_prompt_in_many_chunks(
    backend: TorchBackend, model_dir: Path, chunk: int
) -> None:
    request = Request(prompt(129))
    await prefill(backend, request, chunk)
    [answer] = await generate(backend, [request], NEW)
    assert answer == reference_greedy(model_dir, request.prompt, NEW)


@pytest.mark.parametrize(
    ("cached", "length"), [(64, 65), (64, 128), (64, 129), (128, 129), (128, 300)]
)
async def test_cached_prefix_of_another_request(
    backend: TorchBackend, model_dir: Path, cached: int, length: int
) -> None:
    ids = prompt(length, seed=1)
    writer = Request(ids[:cached] + prompt(30, seed=2))
    await prefill(backend, writer, 50)
    request = Request(ids)
    request.take_prefix(writer, cached, backend.geometry.row_bytes)
    await prefill(backend, request)
    [answer] = await generate(backend, [request], NEW)
    assert answer == reference_greedy(model_dir, ids, NEW)


async def test_ragged_batch_of_cold_warm_and_chunked_rows(
    backend: TorchBackend, model_dir: Path
) -> None:
    requests = [Request(prompt(length, seed=3)) for length in LENGTHS]
    warm = Request(prompt(200, seed=4))
    other = Request(warm.prompt[:128])
    await prefill(backend, other)
    warm.take_prefix(other, 128, backend.geometry.row_bytes)
    chunked = Request(prompt(150, seed=5))
    await prefill_step(backend, [(requests[2], 64), (chunked, 70), (requests[0], 1)])
    await prefill_step(
        backend,
        [(chunked, 80), (requests[1], 63), (warm, 72), (requests[3], 65), (requests[5], 1)],
    )
    await prefill_step(backend, [(requests[5], 128), (requests[4], 128)])
    everything = [*requests, warm, chunked]
    answers = await generate(backend, everything, NEW)
    expected = [reference_greedy(model_dir, request.prompt, NEW) for request in everything]
    assert answers == expected


async def test_decoding_batch_changes_while_others_go_on(
    backend: TorchBackend, model_dir: Path
) -> None:
    requests = [Request(prompt(length, seed=6)) for length in (5, 64, 90)]
    for request in requests:
        await prefill(backend, request)
    rows = [hand_over(backend, request, 40) for request in requests]
    answers = [[row.last_token] for row in rows]
    for step in range(30):
        present = [n for n in range(3) if not (n == 0 and step > 10) and not (n == 2 and step < 5)]
        results = await decode_step(backend, [rows[n] for n in present])
        for n, result in zip(present, results, strict=True):
            answers[n].append(result.token_id)
        if step == 20:
            # A row moves to a larger buffer, as when its HBM grows.
            grown = hand_over(backend, requests[1], 80)
            copy_rows(backend, rows[1].kv.wire, rows[1].capacity, grown.kv.wire, grown.capacity)
            rows[1].kv, rows[1].capacity = grown.kv, grown.capacity
    for request, answer in zip(requests, answers, strict=True):
        assert answer == reference_greedy(model_dir, request.prompt, NEW)[: len(answer)]


def copy_rows(
    backend: TorchBackend, source: memoryview, capacity: int, target: memoryview, larger: int
) -> None:
    geometry = backend.geometry
    for layer, size in enumerate(geometry.row_bytes):
        a, b = geometry.flat_offset(capacity, layer, 0), geometry.flat_offset(larger, layer, 0)
        target[b : b + capacity * size] = source[a : a + capacity * size]


async def test_one_wrong_row_of_cached_kv_changes_the_logits(backend: TorchBackend) -> None:
    request = Request(prompt(65))
    await prefill_step(backend, [(request, 64)])
    for layer, size in enumerate(backend.geometry.row_bytes):
        damaged = Request(request.prompt)
        damaged.take_prefix(request, 64, backend.geometry.row_bytes)
        values = np.frombuffer(damaged.kv[layer], np.float32).reshape(64, size // 4)
        values[40] = -values[40]
        del values
        whole = Request(request.prompt)
        whole.take_prefix(request, 64, backend.geometry.row_bytes)
        for either in (damaged, whole):
            either.sampling = Sampling(max_tokens=1, seed=0, top_logprobs=5)
        await prefill_step(backend, [(damaged, 1), (whole, 1)])
        assert damaged.first is not None
        assert whole.first is not None
        assert damaged.first.top != whole.first.top


async def test_row_without_its_kv_leaves_the_others_alone(
    backend: TorchBackend, model_dir: Path
) -> None:
    """A row whose layers never arrived is computed on whatever bytes lie there, NaN for example."""
    healthy = Request(prompt(100, seed=7))
    dead_ids = prompt(20, seed=8)
    forward = await backend.begin_prefill(
        [
            PrefillRow(dead_ids, 64, GREEDY),
            PrefillRow(healthy.prompt, 0, GREEDY),
        ]
    )
    for layer, size in enumerate(backend.geometry.row_bytes):
        dead, alive = backend.allocate(84 * size), backend.allocate(100 * size)
        dead.wire[:] = b"\xff" * dead.nbytes
        await forward.layer(layer, [LayerView(dead, 0), LayerView(alive, 0)])
    dead_result, result = await forward.finish()
    assert dead_result is None
    assert result is not None
    assert [result.token_id] == reference_greedy(model_dir, healthy.prompt, 1)


async def test_cancelled_layer_ends_only_when_the_thread_has_left_the_buffers(
    backend: TorchBackend, model_dir: Path
) -> None:
    ids = prompt(2000, seed=9)
    forward = await backend.begin_prefill([PrefillRow(ids, 0, GREEDY)])
    size = backend.geometry.row_bytes[0]
    buffer = backend.allocate(len(ids) * size)
    task = asyncio.create_task(forward.layer(0, [LayerView(buffer, 0)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = bytes(buffer.wire)
    request = Request(prompt(10))
    await prefill(backend, request)
    assert bytes(buffer.wire) == before
    [answer] = await generate(backend, [request], 3)
    assert answer == reference_greedy(model_dir, request.prompt, 3)


async def test_misuse_is_refused_with_a_sentence(backend: TorchBackend) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        await backend.begin_prefill([PrefillRow([], 0, None)])
    with pytest.raises(ValueError, match="needs rows"):
        await backend.begin_prefill([])
    forward = await backend.begin_prefill([PrefillRow([1], 0, None)])
    with pytest.raises(ValueError, match="expected layer 0"):
        await forward.layer(1, [])
    with pytest.raises(ValueError, match="layer 0 has not run yet"):
        await forward.finish()
    request = Request(prompt(3))
    await prefill(backend, request)
    row = hand_over(backend, request, 1)
    await decode_step(backend, [row])
    with pytest.raises(ValueError, match="no room"):
        await backend.decode([row])


async def test_greedy_answers_of_tiny_are_varied_and_far_from_ties(
    backend: TorchBackend, model_dir: Path
) -> None:
    answers = [reference_greedy(model_dir, prompt(length), NEW) for length in LENGTHS]
    for answer in answers:
        assert len(set(answer)) > 16
    assert len({tuple(answer[:8]) for answer in answers}) == len(answers)
