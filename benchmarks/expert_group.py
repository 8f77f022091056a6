"""Steps of an expert-parallel group, with and without virtual lanes, while KV-Cache moves beside them.

    python -m benchmarks.expert_group [--cnic-bandwidth 100MB/s] [--quantum 64KiB] [--token-bytes 16KiB]

A synthetic cluster of one prefill and one decode node of two engines each. The engines of a node are a group: each
layer of each of their steps ends with an AllToAll over their emulated CNICs. Streams decode on both engines of
the decode node; beside them clients keep asking for the first tokens of long, mostly cached prompts, whose KV goes
through the same CNICs. Cases, each a cluster of its own, in turns:

    quiet      lanes on, no KV traffic: the reference
    lanes on   with KV traffic
    lanes off  with KV traffic, all in one queue

Printed: TPOT as clients see it (median and worst stream), the mean time of a decode step as the node counts it,
and what moved through the decode node's CNICs on the low lane, in and out, while the streams ran.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from benchmarks.local import Cluster, cluster, machine, random_ids

from dualpath.settings.units import parse_bytes, parse_rate

CASES = ("quiet", "lanes on", "lanes off")
BLOCK_TOKENS = 64
LAYERS = 8
STEP_S = 0.01
_FORWARDS = re.compile(r'dualpath_forward_seconds_(sum|count)\{stage="decode"\} (\S+)')
_LOW = re.compile(
    r'dualpath_nic_bytes_total\{[^}]*lane="low"[^}]*nic="[^"]*cnic[^"]*"[^}]*\} (\S+)'
)


@dataclass(frozen=True)
class Load:
    """What clients do: `streams` of `tokens` tokens, beside `askers` of prompts with `cached` cached tokens."""

    streams: int
    tokens: int
    askers: int
    cached: int


@dataclass(frozen=True)
class Round:
    tpot_s: Sequence[float]
    """Of each stream."""
    step_s: float
    low_bytes_per_s: float
    """Of all the decode node's CNICs, both directions together."""


def measure(running: Cluster, load: Load, source: random.Random, *, busy: bool) -> Round:
    contexts = [random_ids(source, load.cached) for _ in range(load.askers if busy else 0)]
    # Every stream's prompt is short, and its length the same: they decode together from the start on.
    prompts = [random_ids(source, BLOCK_TOKENS) for _ in range(load.streams)]
    with asking(running, contexts), ThreadPoolExecutor(load.streams) as pool:
        before, began = counted(running), time.monotonic()
        answers = list(pool.map(lambda prompt: running.ask(prompt, load.tokens), prompts))
        took, after = time.monotonic() - began, counted(running)
    return Round(
        [(a.content_s[-1] - a.content_s[0]) / (a.tokens - 1) for a in answers],
        (after.seconds - before.seconds) / (after.steps - before.steps),
        (after.low_bytes - before.low_bytes) / took,
    )


@contextmanager
def asking(running: Cluster, contexts: Sequence[Sequence[int]]) -> Iterator[None]:
    """One client per context, which asks for two tokens after it (so that KV goes all the way to the decode engine),
    again and again. Each context is stored first."""
    end = threading.Event()

    def ask(context: Sequence[int]) -> None:
        source = random.Random(context[0])
        while not end.is_set():
            running.ask([*context, *random_ids(source, 8)], 2)

    with ThreadPoolExecutor(max(len(contexts), 1)) as pool:
        for context in contexts:
            running.ask([*context, 300], 1)
        asked = [pool.submit(ask, context) for context in contexts]
        try:
            yield
        finally:
            end.set()
        for future in asked:
            future.result()


@dataclass(frozen=True)
class Counted:
    seconds: float
    steps: float
    low_bytes: float


def counted(running: Cluster) -> Counted:
    """What the decode node has counted so far."""
    (node,) = (service for service in running.record.services if service.name == "decode-0")
    assert node.ready is not None
    url = f"http://127.0.0.1:{node.ready.http_port}/metrics"
    return parse(httpx.get(url, trust_env=False).raise_for_status().text)


def parse(text: str) -> Counted:
    """Of a decode node's metrics."""
    forwards = {name: float(value) for name, value in _FORWARDS.findall(text)}
    low = sum(map(float, _LOW.findall(text)))
    return Counted(forwards.get("sum", 0.0), forwards.get("count", 0.0), low)


def settings(args: argparse.Namespace, case: str) -> dict[str, Any]:
    return {
        "model": "synthetic",
        "engines": 2,
        "lanes": case != "lanes off",
        "cnic_bandwidth": args.cnic_bandwidth,
        "quantum": args.quantum,
        "synthetic": {
            "layers": LAYERS,
            "decode_step_s": STEP_S,
            "all_to_all_bytes": args.token_bytes,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cnic-bandwidth", type=parse_rate, default=100_000_000)
    parser.add_argument("--quantum", type=parse_bytes, default=64 * 1024)
    parser.add_argument("--token-bytes", type=parse_bytes, default=16 * 1024, help="per layer")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=150, help="of each stream")
    parser.add_argument("--askers", type=int, default=8)
    parser.add_argument("--cached", type=int, default=4096, help="tokens, in whole blocks")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    load = Load(args.streams, args.tokens, args.askers, args.cached // BLOCK_TOKENS * BLOCK_TOKENS)
    piece = args.streams // 2 * args.token_bytes // 2
    print(
        f"{machine()}; CNICs of {args.cnic_bandwidth / 1e6:g} MB/s, quantum {args.quantum} bytes; "
        f"{load.streams} streams, {LAYERS} layers, AllToAlls of about {piece} bytes each way "
        f"({piece / args.cnic_bandwidth * 1e3:.2f} ms on the wire), {STEP_S * 1e3:g} ms of compute a step"
    )
    rounds: dict[str, list[Round]] = {case: [] for case in CASES}
    source = random.Random(7)
    for _ in range(args.rounds):
        for case in CASES:
            with cluster(settings(args, case)) as running:
                rounds[case].append(measure(running, load, source, busy=case != "quiet"))
    print("case         TPOT ms   worst ms   step ms   of quiet   low lane")
    quiet = statistics.mean(round_.step_s for round_ in rounds["quiet"])
    for case, found in rounds.items():
        tpots = [tpot for round_ in found for tpot in round_.tpot_s]
        step = statistics.mean(round_.step_s for round_ in found)
        low = statistics.mean(round_.low_bytes_per_s for round_ in found)
        print(
            f"{case:10} {statistics.median(tpots) * 1e3:9.1f} {max(tpots) * 1e3:10.1f} "
            f"{step * 1e3:9.1f} {step / quiet:10.2f} {low / 1e6:7.1f} MB/s"
        )


if __name__ == "__main__":
    main()
