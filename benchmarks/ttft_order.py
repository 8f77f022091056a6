"""What an order of the queue by length gives to TTFT in bursts, at the same throughput: short-first against FIFO.

    python -m benchmarks.ttft_order [--seeds 5] [--requests 20000] [--weights 2,8,32]

A discrete-event run without a clock: the same arrivals, the same engines, the service's own PE placement; only the
order of the queue differs. Arrivals come in bursts (a Poisson process with three times the mean rate for a quarter of
the time); most requests are an agent's next turn (429 new tokens on average), one in 200 is a long prompt without
hits (8k to 32k tokens). An engine computes one request after the other at 4,000 tokens/s; β is 5 s of computing, and
what an engine has is computed in the order in which it came there. TTFT is from arrival to the end of prefill.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dualpath.policy.api import EngineId, EngineView, Ordering, QueuedRequest
from dualpath.policy.ordering import Fifo, ShortFirst
from dualpath.policy.prefill_placement import CategoryPlacement

TOKENS_PER_S = 4000.0
ENGINES = 16
UTILIZATION = 0.85
BURST = 3.0
BURST_SHARE = 0.25
PERIOD_S = 40.0
LONG_EVERY = 200


@dataclass
class Figures:
    """`ttft_s` by request; `ends_s`: when the last one was done."""

    ttft_s: dict[str, float] = field(default_factory=dict)
    ends_s: float = 0.0


def arrivals(seed: int, count: int) -> list[QueuedRequest]:
    source = random.Random(seed)
    mean_tokens = 429 + (8000 + 32_000) / 2 / LONG_EVERY
    rate = UTILIZATION * ENGINES * TOKENS_PER_S / mean_tokens
    quiet = (1 - BURST * BURST_SHARE) / (1 - BURST_SHARE)
    made, at = [], 0.0
    for number in range(count):
        in_burst = at % PERIOD_S < BURST_SHARE * PERIOD_S
        at += source.expovariate(rate * (BURST if in_burst else quiet))
        is_long = source.randrange(LONG_EVERY) == 0
        new = source.randrange(8000, 32_000) if is_long else 1 + int(source.expovariate(1 / 429))
        tokens = new + (0 if is_long else source.randrange(2000, 60_000))
        made.append(QueuedRequest(f"r{number}", tokens, new, arrival=number, arrived_s=at))
    return made


def run(requests: Sequence[QueuedRequest], ordering: Ordering) -> Figures:
    policy, figures = CategoryPlacement(ordering), Figures()
    by_id = {request.request_id: request for request in requests}
    held: list[deque[QueuedRequest]] = [deque() for _ in range(ENGINES)]
    ends: list[tuple[float, int]] = []

    def fetch(number: int) -> None:
        mine = held[number]
        policy.update(
            str(number),
            [
                EngineView(
                    EngineId(str(number), 0),
                    len(mine),
                    sum(request.tokens for request in mine),
                    0,
                    compute_tok=sum(request.new_tokens for request in mine),
                    beta=int(5 * TOKENS_PER_S),
                    always=2,
                )
            ],
        )

    def place(now: float) -> None:
        for placement in policy.place():
            number = int(placement.engine.node_id)
            held[number].append(by_id[placement.request_id])
            if len(held[number]) == 1:
                begin(number, now)

    def begin(number: int, now: float) -> None:
        heapq.heappush(ends, (now + held[number][0].new_tokens / TOKENS_PER_S, number))

    for number in range(ENGINES):
        fetch(number)
    coming = deque(requests)
    while coming or ends:
        if coming and (not ends or coming[0].arrived_s <= ends[0][0]):
            now = coming[0].arrived_s
            policy.add(coming.popleft())
        else:
            now, number = heapq.heappop(ends)
            done = held[number].popleft()
            figures.ttft_s[done.request_id] = now - done.arrived_s
            figures.ends_s = now
            if held[number]:
                begin(number, now)
            fetch(number)
        place(now)
    return figures


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def row(name: str, figures: Figures, by_id: dict[str, QueuedRequest]) -> tuple[float, ...]:
    every = list(figures.ttft_s.values())
    long = [t for r, t in figures.ttft_s.items() if by_id[r].new_tokens >= 8000]
    return (
        statistics.fmean(every), percentile(every, 0.5), percentile(every, 0.9), percentile(every, 0.99),
        percentile(long, 0.5), max(every), len(every) / figures.ends_s,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--weights", default="2,8,32", help="of short-first, separated by commas")
    args = parser.parse_args(arguments)
    orders: dict[str, Ordering] = {"fifo": Fifo()}
    for text in args.weights.split(","):
        orders[f"short-first {text}"] = ShortFirst(TOKENS_PER_S, float(text))
    print(f"seconds, medians over {args.seeds} seeds of {args.requests:,} requests")
    print("| order | mean | p50 | p90 | p99 | long prompts, p50 | max | requests/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in orders}
    for seed in range(args.seeds):
        requests = arrivals(seed, args.requests)
        by_id = {request.request_id: request for request in requests}
        for name, ordering in orders.items():
            rows[name].append(row(name, run(requests, ordering), by_id))
    for name, of_seeds in rows.items():
        columns = [statistics.median(column) for column in zip(*of_seeds, strict=True)]
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in columns) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
