"""Where engines are the bottleneck and storage is not: does dualpath cost anything? Tokens computed per second.

    python -m benchmarks.compute_bound [--shape 1P1D] [--rounds 8] [--seconds 8]

Synthetic engines that take 0.5 ms for a new token and 50 ns for each pair of it and one before, SNICs of 200
MB/s, of which hits need a hundredth, closed-loop clients that ask for stored contexts with many new tokens,
three requests to a forward of 0.3 s. basic, pe-only and dualpath run in turns on the same store, every other
round backwards. New tokens per second are of the requests answered between the first forward's end and the last
one's in a window in which all clients were busy.

A run is valid only if the prefill engines computed for at least 90 % of the window (by the emulated time of the
tokens that were answered: waiting does not count), the machine's CPU was less than 80 % busy, and all that was
stored was hit. Printed are ratios of the same round with their mean and 95 % interval; wanted: it lies above
0.97, and not wholly below 1. Exit code 1 where something was not valid.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from benchmarks.local import machine, random_ids
from benchmarks.ratios import in_turn, interval
from benchmarks.snics import (
    add_window_options,
    ask,
    contexts,
    end,
    home_with,
    measure,
    settings,
)

from dualpath.loadgen.experiments.systems import shape as nodes_of
from dualpath.policy.attention import attention_pairs
from dualpath.settings import parse_rate

SYSTEMS = ("basic", "pe-only", "dualpath")
TOKEN_S = 0.5e-3
ATTENTION_S = 50e-9
CLIENTS_PER_ENGINE = 12
TOGETHER_S = 0.03
"""Within this the answers of a forward come, which takes ten times as long."""
WANTED = 0.97


@dataclass(frozen=True)
class Answer:
    """When it came, on the monotonic clock; how many tokens were computed for it, and how long that takes."""

    at: float
    new_tokens: int
    compute_s: float


@dataclass(frozen=True)
class Run:
    tokens_per_s: float
    busy: float
    """Part of the prefill engines' time that what was answered takes."""
    snic_busy: float
    cpu: float
    misses: int

    @property
    def valid(self) -> bool:
        return self.busy >= 0.9 and self.cpu < 0.8 and self.snic_busy < 0.5 and not self.misses


def rates(answers: Sequence[Answer]) -> tuple[float, float]:
    """(tokens, seconds of computing) per second, from the first forward, which does not count, to the last: its
    answers come together. Raises ValueError for fewer than two."""
    first = min((answer.at for answer in answers), default=0.0)
    counted = [answer for answer in answers if answer.at > first + TOGETHER_S]
    if not counted:
        raise ValueError(f"{len(answers)} answers in a window tell no rate; take longer windows")
    seconds = max(answer.at for answer in counted) - first
    return (
        sum(answer.new_tokens for answer in counted) / seconds,
        sum(answer.compute_s for answer in counted) / seconds,
    )


def cluster_settings(args: argparse.Namespace, prefill: int, decode: int) -> dict[str, Any]:
    longest = args.tokens + args.new
    base = settings(prefill, decode, args.bandwidth, longest)
    engine = base["synthetic"] | {"token_s": TOKEN_S, "attention_s": ATTENTION_S}
    return base | {"chunk_tokens": args.chunk, "synthetic": engine}


def once(
    system: str, number: int, args: argparse.Namespace, home: Path, stored: list[list[int]]
) -> Run:
    """One run. Its new tokens are new: else a later one would hit what an earlier one has computed."""
    prefill, decode = nodes_of(args.shape)
    chosen = cluster_settings(args, prefill, decode) | {"mode": system}
    source = random.Random(f"{system} {number}")
    answers: list[Answer] = []
    misses = 0

    async def agent(http: httpx.AsyncClient, model: str, number: int) -> None:
        nonlocal misses
        context = stored[source.randrange(len(stored))]
        explained = await ask(http, model, [*context, *random_ids(source, args.new)])
        hit, new = explained["hit_tokens"], args.new + len(context) - explained["hit_tokens"]
        misses += hit < len(context)
        compute_s = TOKEN_S * new + ATTENTION_S * attention_pairs(hit, new)
        answers.append(Answer(time.monotonic(), new, compute_s))

    clients = CLIENTS_PER_ENGINE * prefill
    (window,) = measure(
        home, chosen, clients, agent, warm_s=args.warm, windows=1, window_s=args.seconds
    )
    until = window.since + window.seconds
    tokens_per_s, computing = rates([a for a in answers if window.since <= a.at <= until])
    snics = window.busy(args.bandwidth, "" if system == "dualpath" else "prefill")
    return Run(tokens_per_s, computing / prefill, snics, window.cpu, misses)


def report(base: str, runs: Sequence[dict[str, Run]]) -> None:
    ratios = [run["dualpath"].tokens_per_s / run[base].tokens_per_s for run in runs]
    if len(ratios) < 2:
        print(f"dualpath / {base}: {ratios[0]:.3f}")
        return
    found = interval(ratios)
    good = found.low >= WANTED and found.high >= 1
    print(
        f"dualpath / {base}: {found}; wanted: above {WANTED:g} and not wholly below 1: "
        f"{'good' if good else 'NOT as wanted'}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="1P1D", help="as 2P1D")
    parser.add_argument("--rounds", type=int, default=8, help="of all systems")
    parser.add_argument(
        "--bandwidth", type=parse_rate, default=parse_rate("200MB/s"), help="of each SNIC"
    )
    parser.add_argument("--tokens", type=int, default=512, help="of each stored context")
    parser.add_argument("--new", type=int, default=192, help="tokens of each request")
    parser.add_argument("--chunk", type=int, default=576, help="tokens of a forward at most")
    parser.add_argument("--contexts", type=int, default=16, help="stored contexts")
    add_window_options(parser, warm_s=2.0, seconds=8.0)
    args = parser.parse_args(arguments)
    print(machine())
    stored = contexts(args.contexts, args.tokens)
    runs: list[dict[str, Run]] = []
    with home_with(settings(1, 1, None, args.tokens + args.new), stored) as home:
        for number in range(args.rounds):
            found: dict[str, Run] = {}
            for system in in_turn(SYSTEMS, number):
                run = found[system] = once(system, number, args, home, stored)
                print(
                    f"{args.shape}  round {number + 1}  {system:8} {run.tokens_per_s:7.1f} tokens/s  "
                    f"engines {run.busy:.1%} busy, SNICs {run.snic_busy:.1%}, CPU {run.cpu:.0%}, "
                    f"{run.misses} requests missed hits: {'valid' if run.valid else 'INVALID'}",
                    flush=True,
                )
            runs.append(found)
    for base in ("pe-only", "basic"):
        report(base, runs)
    return end(all(run.valid for found in runs for run in found.values()))


if __name__ == "__main__":
    sys.exit(main())
