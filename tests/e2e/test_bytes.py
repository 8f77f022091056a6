"""Agents talk to one prefill and two decode nodes at once; every token they get depends on every byte of KV.

For each way of reading: 200 requests of mixed lengths, cold and warm, whole and streamed, over all real
processes; one of the ways with chunked prefill, one without layerwise prefill, one with two engines on each
node and emulated NICs. The oracle computes what each request must be answered, from its prompt alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.agents import Client, Reply, talk_all
from tests.support.cluster import LocalCluster, until
from tests.support.stored import flip, stored

from dualpath.blocks import BlockKeys, root_key
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import Settings

AGENTS, TURNS = 20, 10
CASES: dict[str, dict[str, Any]] = {
    "halves": {"chunk_tokens": 300},
    "round-robin": {"layerwise": False},
    "adaptive": {"engines": 2, "snic_bandwidth": "100MB/s", "cnic_bandwidth": "400MB/s"},
}
"""Ways of reading, and settings besides."""
MOVED_BESIDES = 1 << 20
"""Bytes that a storage NIC may have received besides blocks: questions, answers, acknowledgements."""


@dataclass(frozen=True)
class Run:
    """A cluster on which all agents have talked to their ends."""

    read_path: str
    cluster: LocalCluster
    spec: ModelSpec
    talks: list[list[Reply]]

    @property
    def replies(self) -> list[Reply]:
        return [reply for talk in self.talks for reply in talk]

    @property
    def warm(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.cached_tokens]

    @property
    def bytes_read(self) -> tuple[int, int]:
        """By the prefill side and by the decode side, as the answers say."""
        return (
            sum(reply.bytes_read[0] for reply in self.replies),
            sum(reply.bytes_read[1] for reply in self.replies),
        )


@pytest.fixture(
    scope="module",
    params=[
        "halves",
        pytest.param("round-robin", marks=pytest.mark.slow),
        pytest.param("adaptive", marks=pytest.mark.slow),
    ],
)
def run(request: pytest.FixtureRequest, start_cluster: StartCluster) -> Iterator[Run]:
    """The cluster has ended when the next one begins."""
    path = request.param
    # What one node gives up finding, on a machine that stands still, makes what the other reads useless.
    patient = {"read_deadline_s": 150}
    cluster = start_cluster(prefill=1, decode=2, read_path=path, **patient, **CASES[path])
    spec = load_spec(Settings(model="synthetic", home=cluster.home))
    yield Run(path, cluster, spec, talk(cluster, agents=AGENTS, turns=TURNS))
    cluster.stop()


def talk(cluster: LocalCluster, **talks: Any) -> list[list[Reply]]:
    """All agents to their ends; see `talk_all`."""

    async def all_agents() -> list[list[Reply]]:
        async with Client(cluster.base_url, cluster.model, timeout_s=500) as client:
            return await talk_all(client, **talks)

    return asyncio.run(all_agents())


def test_every_answer_is_right(run: Run) -> None:
    assert len(run.replies) == AGENTS * TURNS
    wrong = [reply for reply in run.replies if reply.tokens != reply.right_tokens(run.spec)]
    assert not wrong, f"{len(wrong)} wrong, the first of {wrong[0].explain}"
    for reply in run.replies:
        assert reply.finish == "length"
        assert reply.prompt_tokens == len(reply.prompt)
        assert reply.explain["attempts"] == 1


def test_a_turn_reads_what_the_turns_before_it_stored(run: Run) -> None:
    geometry = run.spec.geometry
    found = possible = 0
    for talk in run.talks:
        for before, reply in pairwise(talk):
            stored = (len(before.prompt) + len(before.tokens) - 1) // geometry.block_tokens
            hits = min(stored, geometry.max_hit_blocks(len(reply.prompt)))
            possible += hits * geometry.block_tokens
            found += min(reply.cached_tokens, hits * geometry.block_tokens)
    # On a stalled machine an answer may end before its last block is stored (`done_grace_s`).
    assert found >= 0.8 * possible


def test_answers_explain_each_byte_that_was_read(run: Run) -> None:
    geometry = run.spec.geometry
    for reply in run.replies:
        explain = reply.explain
        assert reply.cached_tokens == explain["hit_tokens"]
        assert reply.cached_tokens % geometry.block_tokens == 0
        assert sum(reply.bytes_read) == reply.cached_tokens * geometry.token_bytes
        by_prefill, by_decode = (count > 0 for count in reply.bytes_read)
        assert {
            "none": (False, False),
            "prefill": (True, False),
            "decode": (False, True),
            "split": (True, True),
        }[reply.read_path] == (by_prefill, by_decode)


def test_storage_nics_moved_what_the_answers_say(run: Run) -> None:
    def received() -> tuple[int, int]:
        cluster = run.cluster.status().cluster
        assert cluster is not None
        sides = {"prefill": 0, "decode": 0}
        for node in cluster.nodes:
            for nic in node.status.nics:
                if nic.nic.endswith(".snic") and nic.direction == "rx":
                    sides[node.node_id.partition("-")[0]] += nic.nbytes
        return sides["prefill"], sides["decode"]

    # Nodes report their NICs with each fetch.
    until(
        lambda: all(nic >= said for nic, said in zip(received(), run.bytes_read, strict=True)),
        "the nodes have reported all that their NICs received",
    )
    for nic, said in zip(received(), run.bytes_read, strict=True):
        assert nic - said < MOVED_BESIDES


def test_both_sides_read_their_part(run: Run) -> None:
    by_prefill, by_decode = run.bytes_read
    share = by_prefill / (by_prefill + by_decode)
    paths = [reply.read_path for reply in run.warm]
    if run.read_path == "halves":
        assert 0.3 <= share <= 0.7
        # One block cannot be split.
        assert all(
            path == "split" or reply.cached_tokens == run.spec.geometry.block_tokens
            for path, reply in zip(paths, run.warm, strict=True)
        )
    elif run.read_path == "round-robin":
        assert set(paths) == {"prefill", "decode"}
        assert 0.4 <= paths.count("prefill") / len(paths) <= 0.6
    else:
        assert set(paths) == {"prefill", "decode"}


def test_both_decode_nodes_and_only_they_decode(run: Run) -> None:
    nodes = [reply.explain["decode_node"] for reply in run.replies]
    assert set(nodes) == {"decode-0", "decode-1"}
    assert min(nodes.count(node) for node in set(nodes)) >= len(nodes) // 4
    assert {reply.explain["prefill_node"] for reply in run.replies} == {"prefill-0"}


def test_afterwards_every_pool_and_queue_is_empty(run: Run) -> None:
    run.cluster.until_idle()
    assert run.cluster.status().well


def test_one_flipped_byte_in_a_stored_block_is_found_computed_anew_and_repaired(run: Run) -> None:
    """Comes last: it damages the store."""
    reply = max(run.warm, key=lambda reply: len(reply.prompt))
    block_tokens = run.spec.geometry.block_tokens
    file, offset = _stored_block(run, reply, number=2)
    flip(file, offset + 1000)
    before = _corrupt_reads(run)

    async def again() -> Reply:
        async with Client(run.cluster.base_url, run.cluster.model) as client:
            return await client.ask(reply.prompt, reply.sampling)

    first = asyncio.run(again())
    assert first.tokens == reply.tokens
    assert first.cached_tokens == 2 * block_tokens
    assert _corrupt_reads(run) == before + 1
    run.cluster.until_idle()
    second = asyncio.run(again())
    assert second.tokens == reply.tokens
    assert second.cached_tokens >= reply.cached_tokens
    assert _corrupt_reads(run) == before + 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_requests_through_memory_for_a_few(start_own_cluster: StartCluster) -> None:
    """Prompts wait for slots, decoding runs out of HBM and pre-empts, and every answer is right all the same."""
    cluster = start_own_cluster(
        prefill=2,
        decode=2,
        max_context=4096,
        chunk_tokens=512,
        write_back_blocks=16,
        prefill_buffer="16MiB",
        decode_buffer="18MiB",
        prefill_hbm="16MiB",
        decode_hbm="12MiB",
        max_attempts=100,
    )
    spec = load_spec(Settings(model="synthetic", home=cluster.home))
    talks = talk(cluster, agents=125, turns=8, answers=(1, 30, 200))
    replies = [reply for talk in talks for reply in talk]
    assert len(replies) == 1000
    assert not [reply for reply in replies if reply.tokens != reply.right_tokens(spec)]
    assert any(reply.explain["attempts"] > 1 for reply in replies)
    cluster.until_idle()


def _stored_block(run: Run, reply: Reply, number: int) -> tuple[Path, int]:
    """File and offset of a prompt's block."""
    chain = BlockKeys(root_key(run.spec.fingerprint), run.spec.geometry.block_tokens)
    chain.extend(reply.prompt)
    places = stored(run.cluster.home / "store")
    (place,) = (place for (_, key), place in places.items() if key == chain.keys[number])
    return place


def _corrupt_reads(run: Run) -> int:
    """Blocks that nodes have found damaged, of all nodes together."""
    count = 0
    for name, port in run.cluster.http_ports.items():
        if name.startswith(("prefill", "decode")):
            metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
            found = re.findall(
                r'^dualpath_blocks_read_total\{.*"corrupt".*\} (\S+)$', metrics, re.M
            )
            count += sum(int(float(value)) for value in found)
    return count
