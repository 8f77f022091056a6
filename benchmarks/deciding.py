"""How fast the scheduler's policies decide, on one core: placements, and how long a fetch takes that places some.

A cluster of the paper's largest shape (48P96D: 144 nodes of 8 engines) has 10,000 requests queued, and gets a new one
for each that is placed. Groups fetch in turn, each with all its engines; between two fetches of a group, each of its
engines has finished a request. Timed, in CPU time, is the whole of a fetch: taking its report, the drain that it
starts and, for each request that gets a PE, the choice of who reads it. At first all engines are empty, and known:
the very first fetch places whatever fits into the cluster, on the DE side all 10,000. That round is in the figures,
and shown apart (fill).

    python -m benchmarks.deciding [--nodes 144] [--queued 10000] [--rounds 100] [--runs 3]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from dualpath.policy.api import EngineId, EngineView, QueuedRequest, ReadSide
from dualpath.policy.registry import Side, placement_policy, read_path_policy

ENGINES = 8
HBM_TOKENS = 1_000_000
ALPHA, BETA = 1_000_000, 20_000
"""Tokens: 3 s of reads at 50 GB/s and 150 KB a token; 5 s of computing at 4,000 tokens/s."""
BLOCK = 64


@dataclass
class Figures:
    """`fill_s`, `steady_s`: fetches that placed something, of the first round and of the others."""

    engines: int
    placements: int = 0
    seconds: float = 0.0
    fill_s: list[float] = field(default_factory=list)
    steady_s: list[float] = field(default_factory=list)


class Group:
    """A node as its fetches show it: each engine's requests, first come first finished."""

    def __init__(self, name: str, side: Side) -> None:
        self.name, self.side = name, side
        self.held: list[deque[QueuedRequest]] = [deque() for _ in range(ENGINES)]
        self.read_q = 0

    def fetch(self) -> list[EngineView]:
        is_prefill = self.side == "prefill"
        return [
            EngineView(
                EngineId(self.name, number),
                seq=len(held),
                tok=sum(request.tokens for request in held),
                read_q=self.read_q,
                hbm_free=0 if is_prefill else HBM_TOKENS - sum(r.needed_tokens for r in held),
                hbm_total=0 if is_prefill else HBM_TOKENS,
                compute_tok=sum(request.new_tokens for request in held),
                alpha=ALPHA,
                beta=BETA,
            )
            for number, held in enumerate(self.held)
        ]

    def finish(self) -> None:
        """Between two fetches an engine ends a request, and its node has read what it had to."""
        for held in self.held:
            if held:
                held.popleft()
        self.read_q //= 2


def request(number: int, side: Side) -> QueuedRequest:
    """Contexts of 1k to 64k tokens of which 429 or so are new: the 64K trace's proportions, the same every time."""
    tokens = 1024 + number * 7919 % 64_512
    new = 229 + number * 104_729 % 400
    needed = tokens + BLOCK if side == "decode" else 0
    return QueuedRequest(f"r{number}", tokens, new, needed, arrival=number)


def run(side: Side, nodes: int, queued: int, rounds: int) -> Figures:
    policy = placement_policy("adaptive", side)
    reads = read_path_policy("split", BLOCK)
    groups = {f"{side}-{n}": Group(f"{side}-{n}", side) for n in range(nodes)}
    for group in groups.values():
        policy.update(group.name, group.fetch())
    waiting = {r.request_id: r for r in (request(n, side) for n in range(queued))}
    for waits in waiting.values():
        policy.add(waits)
    figures, arrived = Figures(nodes * ENGINES), queued
    for number in range(rounds):
        for group in groups.values():
            group.finish()
            views = group.fetch()
            started = time.thread_time()
            policy.update(group.name, views)
            placed = policy.place()
            if side == "prefill":
                for placement in placed:
                    mine = groups[placement.engine.node_id]
                    hits = waiting[placement.request_id].tokens // BLOCK
                    split = reads.choose(hits, ReadSide(mine.read_q), ReadSide(ALPHA // 2))
                    mine.read_q += split.prefill_blocks * BLOCK
            took = time.thread_time() - started
            if placed:
                (figures.steady_s if number else figures.fill_s).append(took)
            figures.seconds += took
            figures.placements += len(placed)
            for placement in placed:
                held = groups[placement.engine.node_id].held[placement.engine.number]
                held.append(waiting.pop(placement.request_id))
                new = request(arrived, side)
                waiting[new.request_id] = new
                policy.add(new)
                arrived += 1
    return figures


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def report(side: Side, figures: Figures) -> str:
    steady, every = figures.steady_s, [*figures.fill_s, *figures.steady_s]
    columns = (
        1e3 * statistics.median(steady), 1e3 * percentile(steady, 0.99), 1e3 * max(steady),
        1e3 * statistics.median(figures.fill_s), 1e3 * max(figures.fill_s), 1e3 * percentile(every, 0.99),
    )  # fmt: skip
    return (
        f"{side:8} {figures.engines:7,} {figures.placements:10,} "
        f"{figures.placements / figures.seconds:12,.0f} {len(every):8,} "
        + " ".join(f"{value:9.3f}" for value in columns)
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--nodes", type=int, default=144, help="nodes of 8 engines, a third prefill"
    )
    parser.add_argument("--queued", type=int, default=10_000, help="requests that always wait")
    parser.add_argument("--rounds", type=int, default=100, help="fetches of each group")
    parser.add_argument("--runs", type=int, default=3, help="runs of the largest shape")
    args = parser.parse_args(arguments)
    gc.freeze()
    print(
        f"{args.queued:,} queued, {args.rounds} fetches of each group; milliseconds per fetch that placed something"
    )
    print(
        "side     engines placements placements/s  fetches       p50       p99       max"
        "  fill p50  fill max   all p99"
    )
    sizes = [nodes for nodes in (1, 4, 16, 48) if nodes < args.nodes]
    worst_rate, worst_p99 = float("inf"), 0.0
    for nodes in [*sizes, *[args.nodes] * args.runs]:
        prefill = max(nodes // 3, 1)
        sides: tuple[tuple[Side, int], ...] = (
            ("prefill", prefill),
            ("decode", max(nodes - prefill, 1)),
        )
        for side, count in sides:
            figures = run(side, count, args.queued, args.rounds)
            print(report(side, figures), flush=True)
            if nodes == args.nodes:
                worst_rate = min(worst_rate, figures.placements / figures.seconds)
                every = [*figures.fill_s, *figures.steady_s]
                worst_p99 = max(worst_p99, percentile(every, 0.99))
    print(
        f"{args.nodes} nodes, worst of {args.runs} runs: {worst_rate:,.0f} placements/s, "
        f"p99 over all fetches {1e3 * worst_p99:.3f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
