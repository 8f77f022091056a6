"""A real model: clusters that serve SmolLM2 in float32 answer as plain `transformers` does, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import LocalCluster
from tests.support.tokens import Reference, Served
from tokenizers import Tokenizer

from dualpath.model.prepare import prepare_model
from dualpath.settings import Settings

pytestmark = [pytest.mark.smollm2, pytest.mark.slow, pytest.mark.timeout(900)]

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 17, 40, 90, 200, 256, 257, 300, 450, 700)
"""Every edge of a block, and a prompt of several chunks: all sixteen at once."""

SHAPES: dict[str, dict[str, Any]] = {
    "prefill": {"read_path": "prefill"},
    "decode-not-layerwise": {"read_path": "decode", "layerwise": False},
    "split-in-chunks": {"read_path": "halves", "chunk_tokens": 150},
}

COMMON: dict[str, Any] = {
    "dtype": "float32",
    "max_context": 4096,
    "prefill_buffer": "512MiB",
    "decode_buffer": "1GiB",
    "prefill_hbm": "512MiB",
    "decode_hbm": "1GiB",
    "done_grace_s": 60,
}

SENTENCES = (
    "The harbour was quiet when the first boats came back.",
    "Nobody had told the engineers that the bridge would be closed.",
    "A good teacher listens before she answers.",
    "In the valley below, the river turns twice and disappears.",
    "He counted the coins again and found one missing.",
    "Bread needs flour, water, salt, and above all time.",
    "The museum opens at nine, but the guards come at seven.",
    "Our sun is one of many stars, and not the brightest.",
    "She wrote the letter in the evening and burned it at dawn.",
    "When the storage is slow, the fastest processor waits.",
    "Two roads lead to the village; the shorter one is steep.",
    "The old clock in the hall has been wrong for years.",
    "Children learn a language faster than they learn to be silent.",
    "Rain is rare here, so every roof collects it.",
    "The jury could not agree on who had played best.",
    "Copper carries the current, and glass carries the light.",
)

TURNS = (
    "Hello! Who are you?",
    "Tell me about the moon.",
    "How far away is it?",
    "What is a tide?",
    "Name three oceans.",
    "Which one is the largest?",
    "What lives at the bottom of the sea?",
    "How do fish breathe?",
    "Do plants breathe too?",
    "What is photosynthesis?",
    "Why are leaves green?",
    "Why do they turn red in autumn?",
    "Which tree lives longest?",
    "How old can a tortoise get?",
    "Write a line about a tortoise.",
    "Make it rhyme.",
    "Now translate it into French.",
    "What did I ask you first?",
    "Add 17 and 25.",
    "Thank you, goodbye!",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    settings = Settings(model="smollm2", dtype="float32", home=tmp_path_factory.mktemp("home"))
    directory = prepare_model(settings, print)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def draw(tokens: int, number: int) -> list[int]:
        source = random.Random(number)
        text = " ".join(source.choice(SENTENCES) for _ in range(tokens // 8 + 2))
        return list(tokenizer.encode(f"{number}. {text}").ids[:tokens])

    return Reference(directory, draw)


@pytest.fixture(scope="module")
def prompts(reference: Reference) -> list[list[int]]:
    return reference.prompts(LENGTHS)


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path, reference: Reference) -> Iterator[Serve]:
    """Starts the test's cluster."""
    clusters: list[LocalCluster] = []

    def start(read_path: str, **settings: Any) -> Served:
        directory = str(reference.directory)
        clusters.append(
            LocalCluster(tmp_path, **COMMON, model=directory, read_path=read_path, **settings)
        )
        return Served(clusters[-1], reference, read_path)

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_sixteen_at_once_cold_warm_and_continued(
    serve: Serve, prompts: list[list[int]], shape: str
) -> None:
    served = serve(**SHAPES[shape])
    for prompt, answer in zip(prompts, served.complete_at_once(prompts), strict=True):
        served.check(prompt, answer, hits=0)
    expected = [served.stored_tokens(prompt) for prompt in prompts]
    assert expected == [(length - 1) // 64 * 64 for length in LENGTHS]
    warm = served.complete_at_once(prompts)
    for prompt, answer, hits in zip(prompts, warm, expected, strict=True):
        served.check(prompt, answer, hits=hits)
    # Of an answer, too, the KV is there: its blocks were filled by decoding.
    longer = served.reference.prompt(10, after=[*prompts[6], *warm[6].ids])
    assert served.ask(longer).hit_tokens == 192
    served.cluster.until_idle()


def test_a_conversation_of_twenty_turns(serve: Serve) -> None:
    served = serve("adaptive")
    served.converse(TURNS, eos=True)
    served.cluster.until_idle()
