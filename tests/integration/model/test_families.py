"""Every family in the torch engine against plain `transformers`: float32, greedy, token for token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.checkpoints import FAMILIES, write_checkpoint
from tests.support.engine import GREEDY, Request, generate, prefill, prefill_step
from tests.support.reference import reference_greedy, smallest_gap

from dualpath.model.api import LayerView, PrefillRow
from dualpath.model.backends import load_backend
from dualpath.model.spec import load_spec
from dualpath.model.torch_backend import TorchBackend
from dualpath.settings import Settings

NEW = 24
NEAR_TIE = 1e-3
"""Of logits that are some units apart; roundings are ten times smaller."""


@dataclass
class Model:
    directory: Path
    backend: TorchBackend
    drawn: int = 0

    def prompt(self, length: int, after: tuple[int, ...] = ()) -> list[int]:
        """A prompt whose answer has no near-tie."""
        while True:
            self.drawn += 1
            source = random.Random(self.drawn)
            ids = [*after, *(source.randrange(260, 512) for _ in range(length))]
            if smallest_gap(self.directory, ids, NEW) >= NEAR_TIE:
                return ids

    def right(self, request: Request) -> list[int]:
        return reference_greedy(self.directory, request.prompt, NEW)


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    directory = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    settings = Settings(
        model=str(directory), dtype="float32", device="cpu", threads=1, home=directory / "home"
    )
    backend = load_backend(load_spec(settings), settings)
    assert isinstance(backend, TorchBackend)
    yield Model(directory, backend)
    backend.close()


async def test_cold_in_one_chunk_and_in_many(model: Model) -> None:
    ids = model.prompt(150)
    for chunk in (None, 64, 7):
        request = Request(ids)
        await prefill(model.backend, request, chunk)
        assert await generate(model.backend, [request], NEW) == [model.right(request)]


async def test_cached_prefix_of_another_request(model: Model) -> None:
    prefix = model.prompt(128)
    writer = Request(model.prompt(20, tuple(prefix)))
    await prefill(model.backend, writer, 60)
    for new in (1, 5, 90):
        request = Request(model.prompt(new, tuple(prefix)))
        request.take_prefix(writer, 128, model.backend.geometry.row_bytes)
        await prefill(model.backend, request)
        assert await generate(model.backend, [request], NEW) == [model.right(request)]


async def test_ragged_batch_of_cold_warm_and_chunked_rows(model: Model) -> None:
    backend = model.backend
    short, long, chunked = (Request(model.prompt(n)) for n in (1, 130, 110))
    warm = Request(model.prompt(140))
    other = Request(warm.prompt[:64])
    await prefill(backend, other)
    warm.take_prefix(other, 64, backend.geometry.row_bytes)
    await prefill_step(backend, [(chunked, 80), (short, 1)])
    await prefill_step(backend, [(long, 130), (warm, 76), (chunked, 30)])
    requests = [short, long, warm, chunked]
    assert await generate(backend, requests, NEW) == [model.right(r) for r in requests]


async def test_row_without_its_kv_leaves_the_others_alone(model: Model) -> None:
    """Whatever bytes lie there, NaN for example: with experts they pass through the same products."""
    healthy = Request(model.prompt(60))
    forward = await model.backend.begin_prefill(
        [PrefillRow([300] * 20, 64, GREEDY), PrefillRow(healthy.prompt, 0, GREEDY)]
    )
    for layer, size in enumerate(model.backend.geometry.row_bytes):
        dead, alive = model.backend.allocate(84 * size), model.backend.allocate(60 * size)
        dead.wire[:] = b"\xff" * dead.nbytes
        await forward.layer(layer, [LayerView(dead, 0), LayerView(alive, 0)])
    dead_result, result = await forward.finish()
    assert dead_result is None
    assert result is not None
    assert [result.token_id] == model.right(healthy)[:1]


async def test_answers_are_varied_and_depend_on_all_that_was_said(model: Model) -> None:
    ids = model.prompt(100)
    answer = reference_greedy(model.directory, ids, NEW)
    assert len(set(answer)) > NEW // 2
    other = [*ids[:10], ids[10] - 1 if ids[10] > 260 else 261, *ids[11:]]
    assert reference_greedy(model.directory, other, NEW) != answer


@pytest.mark.parametrize("family", FAMILIES)
async def test_bfloat16_halves_the_rows_and_is_computed(tmp_path: Path, family: str) -> None:
    directory = write_checkpoint(tmp_path, family)
    settings = Settings(
        model=str(directory), dtype="bfloat16", device="cpu", threads=1, home=directory / "home"
    )
    spec = load_spec(settings)
    backend = load_backend(spec, settings)
    requests = [Request([300 + n for n in range(length)]) for length in (3, 130)]
    await prefill_step(backend, [(request, len(request.prompt)) for request in requests])
    answers = await generate(backend, requests, 4)
    assert all(0 <= token < spec.vocab_size for answer in answers for token in answer)
    half = spec.geometry.row_bytes
    whole = load_spec(settings.model_copy(update={"dtype": "float32"})).geometry.row_bytes
    assert [2 * size for size in half] == list(whole)
    backend.close()
