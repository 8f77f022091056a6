"""A whole cluster over a checkpoint directory of the user's own: DeepSeek-V3, whose KV-Cache is compressed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.checkpoints import write_checkpoint
from tests.support.cluster import LocalCluster
from tests.support.tokens import Reference, Served

pytestmark = pytest.mark.slow


def draw(tokens: int, number: int) -> list[int]:
    source = random.Random(number)
    return [source.randrange(260, 512) for _ in range(tokens)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = write_checkpoint(tmp_path_factory.mktemp("DeepSeek-Tiny"), "deepseek_v3", files=2)
    settings: dict[str, Any] = {
        "model": str(directory),
        "served_name": "deepseek-tiny",
        "dtype": "float32",
        "read_path": "halves",
        "chunk_tokens": 100,
        "done_grace_s": 60,
    }
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), **settings)
    yield Served(cluster, Reference(directory, draw), "halves")
    cluster.stop()


def test_it_has_the_name_that_was_given(served: Served) -> None:
    assert served.cluster.model == "deepseek-tiny"


def test_cold_and_warm(served: Served) -> None:
    for prompt in served.reference.prompts((64, 129, 300)):
        assert served.ask(prompt).hit_tokens == 0
        assert served.ask(prompt).hit_tokens == (len(prompt) - 1) // 64 * 64


def test_a_conversation(served: Served) -> None:
    served.converse([f"This is what I say in turn {turn}." for turn in range(5)], eos=False)


def test_eight_at_once(served: Served) -> None:
    prompts = served.reference.prompts(range(10, 330, 40))
    for prompt, answer in zip(prompts, served.complete_at_once(prompts), strict=True):
        served.check(prompt, answer, hits=0)
    served.cluster.until_idle()
