"""Clusters of synthetic engines whose storage NICs are what everything waits for, and how busy each of them is.

Contexts are stored once, in a home that all clusters of a run use one after the other: only the settings differ.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from benchmarks.local import Cluster, machine, random_ids

from dualpath.cluster.home import Home
from dualpath.cluster.status import read_status

BLOCK_TOKENS = 64
LAYERS, ROW_BYTES = 8, 256
BLOCK_BYTES = BLOCK_TOKENS * LAYERS * ROW_BYTES
NEW_TOKENS = 16


@dataclass(frozen=True)
class Sample:
    """What each node's SNIC has received so far, by node; the machine's CPU time, used and in total."""

    at: float
    received: Mapping[str, int]
    cpu: tuple[float, float]


@dataclass(frozen=True)
class Window:
    """Between two samples; `since` is the first one's time on the monotonic clock."""

    since: float
    seconds: float
    received: Mapping[str, int]
    cpu: float
    """Share of the machine's cores that was busy, with whatever."""

    @property
    def bytes_per_s(self) -> float:
        return sum(self.received.values()) / self.seconds

    def busy(self, bandwidth: int, role: str = "") -> float:
        """Of the SNICs whose nodes' names begin with `role`: the part of their bandwidth that was used."""
        chosen = [n for name, n in self.received.items() if name.startswith(role)]
        return sum(chosen) / (self.seconds * bandwidth * len(chosen))


def between(first: Sample, last: Sample) -> Window:
    used, total = (b - a for a, b in zip(first.cpu, last.cpu, strict=True))
    received = {name: n - first.received.get(name, 0) for name, n in last.received.items()}
    return Window(first.at, last.at - first.at, received, used / total if total else 0.0)


async def sample(home: Path) -> Sample:
    """Nodes report their NICs with each fetch, so a sample is up to a fetch interval old."""
    status = await read_status(Home(home))
    assert status is not None
    assert status.cluster is not None
    received = {
        node.node_id: sum(
            use.nbytes
            for use in node.status.nics
            if use.nic.endswith(".snic") and use.direction == "rx"
        )
        for node in status.cluster.nodes
    }
    return Sample(time.monotonic(), received, _cpu())


def _cpu() -> tuple[float, float]:
    ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))


def settings(prefill: int, decode: int, bandwidth: int | None, tokens: int) -> dict[str, Any]:
    """Compute takes no time; buffers and HBM are ample for contexts of `tokens`."""
    room = 64 * BLOCK_BYTES * (tokens // BLOCK_TOKENS + 2)
    return {
        "model": "synthetic",
        "prefill": prefill,
        "decode": decode,
        "snic_bandwidth": bandwidth,
        "max_context": tokens + 4 * BLOCK_TOKENS,
        "chunk_tokens": max(tokens, 2048),
        "prefill_buffer": room,
        "decode_buffer": room,
        "prefill_hbm": room,
        "decode_hbm": room,
        "done_grace_s": 0.0,
        "read_deadline_s": 120.0,
        "transfer_deadline_s": 60.0,
        "node_lost_s": 30.0,
        "synthetic": {
            "layers": LAYERS, "row_bytes": ROW_BYTES, "forward_s": 0.0, "token_s": 0.0,
            "attention_s": 0.0, "decode_step_s": 0.0, "max_context": tokens + 4 * BLOCK_TOKENS,
        },
    }  # fmt: skip


def contexts(count: int, tokens: int) -> list[list[int]]:
    source = random.Random(7)
    return [random_ids(source, tokens) for _ in range(count)]


async def ask(http: httpx.AsyncClient, model: str, prompt: Sequence[int]) -> dict[str, Any]:
    """One token after `prompt`; returns how it was served. Raises RuntimeError where it was not."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "ignore_eos": True}
    answer = await http.post("/completions", json=body, headers={"X-DualPath-Explain": "1"})
    if answer.status_code != 200:
        raise RuntimeError(f"status {answer.status_code}: {answer.text[:300]}")
    explained: dict[str, Any] = answer.json()["dualpath"]
    return explained


def store(home: Path, base: Mapping[str, Any], stored: Sequence[Sequence[int]]) -> None:
    """Have all contexts stored, with unlimited NICs; asks again until a request hits all of each."""

    block_tokens = base.get("block_tokens", BLOCK_TOKENS)

    async def work(running: Cluster) -> None:
        async with httpx.AsyncClient(
            base_url=running.base_url, timeout=120, trust_env=False
        ) as http:
            for context in stored:
                whole = (len(context) - 1) // block_tokens * block_tokens
                for _ in range(100):
                    explained = await ask(http, running.model, context)
                    if explained["hit_tokens"] >= whole:
                        break
                    await asyncio.sleep(0.05)
                else:
                    raise RuntimeError("a context is not stored after 100 requests for it")

    running = Cluster(home, {**base, "snic_bandwidth": None})
    try:
        asyncio.run(work(running))
    finally:
        running.close()


@contextmanager
def home_with(base: Mapping[str, Any], stored: Sequence[Sequence[int]]) -> Iterator[Path]:
    """A home of which all clusters of a run make use, with all contexts `store`d; removed after the block."""
    with tempfile.TemporaryDirectory() as directory:
        store(Path(directory), base, stored)
        yield Path(directory)


def add_window_options(parser: argparse.ArgumentParser, *, warm_s: float, seconds: float) -> None:
    """`--warm` and `--seconds`, of each run."""
    parser.add_argument("--warm", type=float, default=warm_s, help="seconds before the window")
    parser.add_argument("--seconds", type=float, default=seconds, help="of the window")


def end(valid: bool) -> int:
    """The last line, and the exit code."""
    print(f"measured: {machine()}; {'all runs valid' if valid else 'runs were INVALID'}")
    return 0 if valid else 1


Agent = Callable[[httpx.AsyncClient, str, int], Awaitable[None]]
"""What client number `n` does, again and again until it is stopped."""


def measure(
    home: Path,
    settings: Mapping[str, Any],
    agents: int,
    agent: Agent,
    *,
    warm_s: float,
    windows: int,
    window_s: float,
) -> list[Window]:
    """As `drive`, on a cluster with `settings` that is started for it."""
    running = Cluster(home, settings)
    try:
        return drive(running, agents, agent, warm_s=warm_s, windows=windows, window_s=window_s)
    finally:
        running.close()


def drive(
    running: Cluster,
    agents: int,
    agent: Agent,
    *,
    warm_s: float,
    windows: int,
    window_s: float,
) -> list[Window]:
    """Windows in which `agents` clients keep a cluster busy, beginning `warm_s` after the first requests. No
    client has ended in them."""

    async def work() -> list[Window]:
        limits = httpx.Limits(max_connections=agents)
        async with httpx.AsyncClient(
            base_url=running.base_url, timeout=120, trust_env=False, limits=limits
        ) as http:
            clients = [
                asyncio.create_task(_for_ever(agent, http, running.model, n)) for n in range(agents)
            ]
            try:
                await asyncio.sleep(warm_s)
                samples = [await sample(running.home.root)]
                for _ in range(windows):
                    await asyncio.sleep(window_s)
                    samples.append(await sample(running.home.root))
                for client in clients:
                    if client.done():
                        await client
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
        return [between(a, b) for a, b in pairwise(samples)]

    return asyncio.run(work())


async def _for_ever(agent: Agent, http: httpx.AsyncClient, model: str, number: int) -> None:
    while True:
        await agent(http, model, number)
