"""Decode speed of a whole cluster, against plain `transformers` with as many threads, in the same run.

    python -m benchmarks.decode_rate [--batches 1,8] [--context 300] [--steps 64] [--rounds 3] [--threads 0]

A cluster of one prefill and one decode node is asked for `steps` tokens of each of `batch` prompts at once,
through /v1/completions with `stream`. Counted are the tokens that clients see in the time in which all streams
flow: from the latest first chunk to the earliest last one. So prefill is not in it; sampling, detokenizing, the
bus, HTTP and storing the blocks that fill are, and so is this client, on the same cores.

The reference, in turns with it, is `transformers`' own forward with its own cache in this process: the same
prompts, one batch, padded on the left to the longest, a greedy step at a time, prefill not counted. Both sides use
as many threads and OMP_WAIT_POLICY=passive. Prompts of a batch have lengths from 3/4 to 5/4 of the context;
ratio = cluster / transformers, of medians. The engine alone is measured by torch_engine.py.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.local import (
    Cluster,
    Streamed,
    add_model_options,
    cluster,
    machine,
    prepare,
    word_ids,
)

if TYPE_CHECKING:
    from benchmarks.plain_model import PlainModel

WANTED_RATIOS = {1: 0.95, 8: 0.9}


@dataclass(frozen=True)
class Result:
    """Tokens per second by round."""

    batch: int
    cluster: Sequence[float]
    plain: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.cluster) / statistics.median(self.plain)


def make_prompts(words: Sequence[int], batch: int, context: int) -> list[list[int]]:
    source = random.Random(batch)
    spread = [0.75 + 0.5 * number / (batch - 1) if batch > 1 else 1.0 for number in range(batch)]
    return [source.choices(words, k=int(context * share)) for share in spread]


def common_rate(answers: Sequence[Streamed]) -> float:
    """Tokens per second while all streams flow. A chunk may hold several tokens: each counts for its share.

    Raises RuntimeError where they never all flow at once.
    """
    times = [[answer.sent + at for at in answer.content_s] for answer in answers]
    start, stop = max(chunks[0] for chunks in times), min(chunks[-1] for chunks in times)
    if start >= stop:
        raise RuntimeError("the streams did not overlap; ask for more --steps")
    tokens = sum(
        sum(start < at <= stop for at in chunks) * answer.tokens / len(chunks)
        for answer, chunks in zip(answers, times, strict=True)
    )
    return tokens / (stop - start)


def ask_all(running: Cluster, prompts: Sequence[Sequence[int]], steps: int) -> list[Streamed]:
    with ThreadPoolExecutor(len(prompts)) as clients:
        return list(clients.map(lambda prompt: running.ask(prompt, steps), prompts))


def plain_round(model: PlainModel, prompts: Sequence[Sequence[int]], steps: int) -> float:
    model.prefill(prompts)
    began = time.perf_counter()
    for _ in range(steps - 1):
        model.step()
    return (steps - 1) * len(prompts) / (time.perf_counter() - began)


def measure(
    running: Cluster, model: PlainModel, prompts: Sequence[Sequence[int]], steps: int, rounds: int
) -> Result:
    ask_all(
        running, prompts, 16
    )  # Their full blocks are hits from here on: streams begin together.
    plain_round(model, prompts, 4)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(common_rate(ask_all(running, prompts, steps)))
        theirs.append(plain_round(model, prompts, steps))
        print(
            f"batch {len(prompts)}   cluster {ours[-1]:6.1f} tokens/s   "
            f"transformers {theirs[-1]:6.1f} tokens/s",
            flush=True,
        )
    return Result(len(prompts), ours, theirs)


def report(results: Sequence[Result]) -> None:
    print("\nmedians    cluster   transformers (reference)   ratio")
    for result in results:
        wanted = WANTED_RATIOS.get(result.batch, 0.0)
        print(
            f"batch {result.batch:2} {statistics.median(result.cluster):9.1f} "
            f"{statistics.median(result.plain):26.1f} {result.ratio:7.2f}   "
            f"{'good' if result.ratio >= wanted else f'wanted: {wanted:g}'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_options(parser)
    parser.add_argument("--batches", default="1,8", help="concurrent requests, with commas")
    parser.add_argument("--context", type=int, default=300, help="tokens of a prompt, on average")
    parser.add_argument("--steps", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind and batch")
    parser.add_argument("--threads", type=int, default=0, help="of both sides; 0: all cores")
    args = parser.parse_args()
    # Read when torch is loaded: of the reference here, and by inheritance of the cluster's nodes.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    import torch
    from benchmarks.plain_model import PlainModel

    threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    spec = prepare(args)
    words, model = word_ids(spec), PlainModel(spec)
    print(
        f"{machine()}; {args.model} ({spec.dtype}), {threads} threads, prompts of about "
        f"{args.context} tokens, {args.steps} tokens each",
        flush=True,
    )
    settings = {"model": args.model, "dtype": spec.dtype, "threads": threads}
    results = []
    with cluster(settings, args.home) as running:
        for batch in (int(text) for text in args.batches.split(",")):
            prompts = make_prompts(words, batch, args.context)
            results.append(measure(running, model, prompts, args.steps, args.rounds))
    report(results)
    print(f"measured: {machine()}")


if __name__ == "__main__":
    main()
