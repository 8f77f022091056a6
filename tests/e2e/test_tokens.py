"""Whole clusters answer as plain `transformers` does, token by token: `tiny` in float32, over every read path.

Cold, warm, and in between; at every edge of a block; in chunks; many at once; layer by layer, and not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import LocalCluster
from tests.support.tokens import BLOCK, NEW, Reference, Served

from dualpath.model.tiny import write_tiny

LENGTHS = (1, 63, 64, 65, 127, 128, 129)
MANY = (3, 17, 31, 64, 65, 90, 128, 130, 150, 192, 193, 200, 257, 300, 333, 450)
CHUNK = 200

SHAPES: dict[str, dict[str, Any]] = {
    "prefill": {"read_path": "prefill"},
    "decode": {"read_path": "decode"},
    "split": {"read_path": "halves"},
    "split-not-layerwise": {"read_path": "halves", "layerwise": False},
}

COMMON: dict[str, Any] = {"dtype": "float32", "done_grace_s": 60}
"""An answer ends when its blocks can be read: what comes next must hit them, however busy the machine is."""


def draw(tokens: int, number: int) -> list[int]:
    source = random.Random(number)
    return [source.randrange(260, 512) for _ in range(tokens)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny(directory)
    return Reference(directory, draw)


@pytest.fixture(scope="module")
def edges(reference: Reference) -> list[tuple[list[int], list[int]]]:
    """Prompts, and each with its answer and a little more."""
    prompts = reference.prompts(LENGTHS)
    return [(ids, reference.prompt(10, after=[*ids, *reference.greedy(ids)])) for ids in prompts]


@pytest.fixture(scope="module")
def many(reference: Reference) -> list[list[int]]:
    return reference.prompts(MANY)


@pytest.fixture(scope="module")
def long(reference: Reference) -> list[list[int]]:
    """A prompt of a chunk and a half, and one that goes on to five chunks."""
    first = reference.prompt(300)
    return [first, reference.prompt(700, after=first)]


@pytest.fixture(
    scope="module",
    params=[
        "prefill",
        "decode",
        "split",
        pytest.param("split-not-layerwise", marks=pytest.mark.slow),
    ],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, reference: Reference
) -> Iterator[Served]:
    settings = {**COMMON, "model": "tiny", "chunk_tokens": CHUNK, **SHAPES[request.param]}
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), **settings)
    yield Served(cluster, reference, settings["read_path"])
    cluster.stop()


@pytest.mark.parametrize("number", range(len(LENGTHS)), ids=[f"{n}-tokens" for n in LENGTHS])
def test_cold_warm_and_continued(
    served: Served, edges: list[tuple[list[int], list[int]]], number: int
) -> None:
    prompt, longer = edges[number]
    cold = served.ask(prompt)
    assert (cold.hit_tokens, cold.read_path) == (0, "none")
    warm = served.ask(prompt)
    assert warm.hit_tokens == (len(prompt) - 1) // BLOCK * BLOCK
    # Of an answer, too, the KV is there, but for its last token's: its blocks were filled by decoding.
    continued = served.ask(longer)
    assert continued.hit_tokens == (len(prompt) + NEW - 1) // BLOCK * BLOCK


def test_long_prompts_in_chunks(served: Served, long: list[list[int]]) -> None:
    first, longer = long
    for prompt, hits in ((first, 0), (longer, 256), (longer, 960), (first, 256)):
        before = served.forwards()
        answer = served.ask(prompt)
        assert answer.hit_tokens == hits
        # Later chunks take everything before them from the DE buffer.
        chunks = -(-(len(prompt) - hits) // CHUNK)
        assert served.forwards() - before == chunks


def test_sixteen_at_once_cold_and_warm(served: Served, many: list[list[int]]) -> None:
    for prompt, answer in zip(many, served.complete_at_once(many), strict=True):
        served.check(prompt, answer, hits=0)
    expected = [served.stored_tokens(prompt) for prompt in many]
    assert sum(expected) > 0
    warm = served.complete_at_once(many)
    for prompt, answer, hits in zip(many, warm, expected, strict=True):
        served.check(prompt, answer, hits=hits)


def test_a_prompt_comes_back_with_the_log_probabilities_of_transformers(
    served: Served, long: list[list[int]], edges: list[tuple[list[int], list[int]]]
) -> None:
    """In chunks, and although all of it is stored: what is read has no logits."""
    prompts = [long[0], edges[3][0]]
    for prompt in prompts:
        served.ask(prompt)
    answer = served.echo(prompts, max_tokens=0)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert answer["usage"]["completion_tokens"] == 0
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        found, expected = choice["logprobs"], served.reference.logprobs(prompt)
        assert (choice["finish_reason"], found["token_logprobs"][0]) == ("length", None)
        assert len(found["tokens"]) == len(prompt)
        assert found["token_logprobs"][1:] == pytest.approx(
            [scores[token] for scores, token in zip(expected, prompt[1:], strict=True)], abs=1e-4
        )
        for top, own, scores in zip(
            found["top_logprobs"][1:], found["token_logprobs"][1:], expected, strict=True
        ):
            assert own in top.values()
            best = list(top.values())[:2]
            assert best == pytest.approx(sorted(scores)[:-3:-1], abs=1e-4)
    # Followed by an answer, and none of it twice.
    (choice,) = served.echo(prompts[:1], max_tokens=3)["choices"]
    before = answer["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == len(prompts[0]) + 3
    assert choice["logprobs"]["token_logprobs"][:-3] == pytest.approx(
        before["logprobs"]["token_logprobs"], abs=1e-4
    )
    assert choice["text"].startswith(before["text"])
    assert choice["logprobs"]["text_offset"][-3] == len(before["text"])


def test_nothing_is_held_in_the_end(served: Served) -> None:
    served.cluster.until_idle()


# ── a cluster with the settings that users get, but for the room that twenty turns of bytes take ──────
@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    directory = tmp_path_factory.mktemp("roomy")
    write_tiny(directory)
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), "max_position_embeddings": 16_384}
    path.write_text(json.dumps(config))
    return Reference(directory, draw)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, roomy: Reference) -> Iterator[Served]:
    """Two engines a node: twice the pairs to choose from."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    cluster = LocalCluster(directory, **COMMON, model=str(roomy.directory), engines=2)
    yield Served(cluster, roomy, "split")
    cluster.stop()


def test_a_conversation_of_twenty_turns(usual: Served) -> None:
    usual.converse([f"This is what I say in turn {turn}." for turn in range(20)], eos=False)


def test_thirty_at_once_some_of_them_the_same(usual: Served) -> None:
    """The same prompt several times in flight: each may be computed or read, and all are right."""
    prompts = usual.reference.prompts([*range(1, 480, 20)])
    prompts += [prompts[-1]] * 3 + [prompts[10]] * 3
    assert len(prompts) == 30
    for prompt, answer in zip(prompts, usual.complete_at_once(prompts), strict=True):
        assert answer.ids == usual.reference.greedy(prompt)
        usual.check_reads(answer, answer.hit_tokens)
    usual.cluster.until_idle()


def test_streams_carry_the_same_tokens(usual: Served) -> None:
    prompt = usual.reference.prompt(100)
    for _ in range(2):
        assert usual.streamed(prompt) == usual.reference.greedy(prompt)
    usual.cluster.until_idle()
