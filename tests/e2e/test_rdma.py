"""Whole clusters whose KV moves by RDMA, over UCX's TCP: the same answers over every read path, byte by byte."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest
from tests.e2e.conftest import StartCluster
from tests.support.agents import Client, Reply, talk_all
from tests.support.cluster import LocalCluster
from tests.support.tokens import Reference, Served
from tests.support.transport import needs_rdma

from dualpath.model.spec import load_spec
from dualpath.model.tiny import write_tiny
from dualpath.settings import Settings

pytestmark = needs_rdma


def written_by_rdma(cluster: LocalCluster, role: str) -> int:
    """Bytes that the processes of a role have written, as their links said when they ended."""
    logs = [path.read_text() for path in (cluster.home / "logs").glob(f"{role}-*.log")]
    return sum(int(n) for log in logs for n in re.findall(r"rdma_down.*written_bytes=(\d+)", log))


@pytest.mark.parametrize(
    "read_path", ["halves", pytest.param("round-robin", marks=pytest.mark.slow)]
)
def test_agents_of_synthetic_engines_get_answers_in_which_each_byte_counts(
    start_own_cluster: StartCluster, read_path: str
) -> None:
    cluster = start_own_cluster(transport="rdma", read_path=read_path, decode=2)
    spec = load_spec(Settings(model="synthetic", home=cluster.home))

    async def talk() -> list[list[Reply]]:
        async with Client(cluster.base_url, cluster.model) as client:
            return await talk_all(client, agents=6, turns=4)

    replies = [reply for talk in asyncio.run(talk()) for reply in talk]
    assert [r.explain for r in replies if r.tokens != r.right_tokens(spec)] == []
    assert {r.explain["attempts"] for r in replies} == {1}
    paths = {"halves": {"split"}, "round-robin": {"prefill", "decode"}}[read_path]
    assert paths <= {r.read_path for r in replies}
    cluster.until_idle()
    cluster.stop()
    for role in ("prefill", "decode", "storage"):
        assert written_by_rdma(cluster, role) > 0


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    def draw(tokens: int, number: int) -> list[int]:
        source = random.Random(number)
        return [source.randrange(260, 512) for _ in range(tokens)]

    directory: Path = tmp_path_factory.mktemp("tiny")
    write_tiny(directory)
    return Reference(directory, draw)


@pytest.mark.slow
@pytest.mark.parametrize("read_path", ["prefill", "decode", "halves"])
def test_a_model_answers_as_plain_transformers_does(
    start_own_cluster: StartCluster, reference: Reference, read_path: str
) -> None:
    cluster = start_own_cluster(
        transport="rdma",
        read_path=read_path,
        model="tiny",
        dtype="float32",
        done_grace_s=60,
        chunk_tokens=200,
    )
    served = Served(cluster, reference, read_path)
    prompt = reference.prompt(450)
    assert served.ask(prompt).hit_tokens == 0
    assert served.ask(prompt).hit_tokens == 448
    cluster.until_idle()
    cluster.stop()
    assert written_by_rdma(cluster, "prefill") > 0
