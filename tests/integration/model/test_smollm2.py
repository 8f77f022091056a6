"""The default model: converted from its wheel, and served token for token as transformers would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.engine import Request, generate, prefill, prefill_step
from tests.support.reference import reference_greedy
from tokenizers import Tokenizer

from dualpath.model.backends import load_backend
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.model.torch_backend import TorchBackend
from dualpath.settings import Settings

pytestmark = [pytest.mark.smollm2, pytest.mark.slow, pytest.mark.timeout(600)]

TEXT = (
    "The storage network of a cluster carries the KV-Cache of every conversation. A prefill node reads what "
    "it needs before it computes the rest, and a decode node lends its own link when it has nothing to read. "
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    return Settings(model="smollm2", dtype="float32", device="cpu", home=home)


@pytest.fixture(scope="module")
def model_dir(settings: Settings) -> Path:
    lines: list[str] = []
    directory = prepare_model(settings, lines.append)
    assert any("writing weights as float32" in line for line in lines)
    return directory


@pytest.fixture(scope="module")
def spec(settings: Settings, model_dir: Path) -> ModelSpec:
    return load_spec(settings)


@pytest.fixture(scope="module")
def backend(settings: Settings, spec: ModelSpec) -> Iterator[TorchBackend]:
    loaded = load_backend(spec, settings)
    assert isinstance(loaded, TorchBackend)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def ids(model_dir: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return list(tokenizer.encode(TEXT * 5, add_special_tokens=False).ids)


def test_files_and_limits(model_dir: Path, spec: ModelSpec) -> None:
    names = {path.name for path in model_dir.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    } <= names
    assert (spec.eos_ids, spec.max_context, spec.vocab_size) == ((2,), 8192, 49152)
    assert spec.geometry.token_bytes == 46_080
    template = (model_dir / "chat_template.jinja").read_text()
    assert "You are a helpful AI assistant named SmolLM" in template
    assert (
        json.loads((model_dir / "tokenizer_config.json").read_text())["bos_token"] == "<|im_start|>"
    )


def test_digits_and_the_spaces_before_them_are_tokens_of_their_own(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]
    text = "It's  1234 한국\n\tx"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


async def test_ragged_warm_and_chunked_prompts_then_a_decoding_batch(
    backend: TorchBackend, model_dir: Path, ids: list[int]
) -> None:
    lengths = (1, 63, 64, 65, 128, 129)
    requests = [Request(ids[10 : 10 + length]) for length in lengths]
    warm = Request(ids[10:210])
    await prefill_step(backend, [(request, len(request.prompt)) for request in requests[:4]])
    await prefill(backend, requests[4])
    await prefill(backend, requests[5], 50)
    warm.take_prefix(requests[4], 128, backend.geometry.row_bytes)
    await prefill(backend, warm)
    everything = [*requests, warm]
    answers = await generate(backend, everything, 64)
    for request, answer in zip(everything, answers, strict=True):
        assert answer == reference_greedy(model_dir, request.prompt, 64)


async def test_bfloat16_answers_sensibly(settings: Settings, model_dir: Path) -> None:
    """Roundings differ with batching in bfloat16, so only what has no near-tie is compared."""
    half = settings.model_copy(update={"dtype": "bfloat16"})
    directory = prepare_model(half, lambda line: None)
    backend = load_backend(load_spec(half), half)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,"
    request = Request(list(tokenizer.encode(text).ids))
    await prefill(backend, request, 20)
    [answer] = await generate(backend, [request], 8)
    backend.close()
    assert tokenizer.decode(answer).startswith(" 16, 17,")
