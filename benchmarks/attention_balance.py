"""How evenly attention is spread over the engines of a group, per forward: quota off and on (paper §5, §6).

    python -m benchmarks.attention_balance [--engines 4] [--pairs 2] [--seconds 20]

A synthetic cluster whose prefill node has a group of engines: each layer of each forward ends with an AllToAll,
so all wait for the slowest. Agents ask for turns drawn from trajectories like the paper's 64K trace, all
lengths a sixteenth: contexts that are stored, and appended tokens, both of very different lengths. Storage is
not a bottleneck, and there are always more requests at each engine than a forward takes, as in the first part
of the paper's offline runs. Both settings of `batching` run in turn, with the same `chunk_tokens`.

Attention time of an engine in a forward is the emulated engine's own: its time for a pair of tokens times the
pairs of the rows that the engine logged (`trace_forwards`). Printed is max/mean over the engines of each
forward, the mean over the forwards of the window (the paper with the quota: 1.06). Wanted: above 1.2 without,
near 1.06 with. A run is valid only if the machine's CPU was less than 80 % busy and every engine had work in
every forward.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from benchmarks.local import Cluster, machine, random_ids
from benchmarks.ratios import in_turn
from benchmarks.snics import add_window_options, ask, drive, end, home_with, settings

from dualpath.loadgen.traces import make_trace
from dualpath.loadgen.traces.model import Trajectory
from dualpath.policy.attention import attention_pairs

BATCHINGS = ("token-budget", "quota")
SCALE = 16
BLOCK_TOKENS = 32
CHUNK_TOKENS = 512
"""8,192 real tokens, with SCALE."""
LAYERS, ROW_BYTES = 4, 32
ATTENTION_S = 1.3e-6
"""As of DeepSeek-V3.2 660B in the hardware profile of that name."""
TOKEN_S = 2e-3
"""Less than there, so that many forwards fit a run; enough that requests are not used up faster than two cores send
them."""
AGENTS_PER_ENGINE = 24
WANTED_OFF, WANTED_ON = 1.2, 1.06


@dataclass(frozen=True)
class Row:
    """A request's part of a forward, as its engine logged it."""

    step: int
    engine: int
    cached: int
    new: int
    at: float
    """On the wall clock, when all of it had left."""

    @property
    def attention_s(self) -> float:
        return ATTENTION_S * attention_pairs(self.cached, self.new)


def rows(events: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Of what a prefill node logged."""
    return [
        Row(
            event["step"],
            event["engine"],
            event["cached"],
            event["new"],
            datetime.fromisoformat(event["ts"]).timestamp(),
        )
        for event in events
        if event.get("event") == "forward"
    ]


def by_step(found: Sequence[Row], since: float, until: float, engines: int) -> list[list[float]]:
    """Attention seconds of each engine, of every forward that began and ended between two times."""
    whole = {row.step for row in found if since <= row.at <= until}
    cut = {row.step for row in found if not since <= row.at <= until}
    # The last forward before the window may have ended in it, and the next one must have begun there.
    steps = sorted(whole - cut)[1:]
    spent = {step: [0.0] * engines for step in steps}
    for row in found:
        if row.step in spent:
            spent[row.step][row.engine] += row.attention_s
    return [spent[step] for step in steps]


@dataclass(frozen=True)
class Figures:
    ratios: Sequence[float]
    """max/mean of each forward."""
    idle: int
    """Forwards in which an engine had nothing to do."""
    mean_s: float
    """Attention of an engine in a forward."""
    requests_per_s: float
    cpu: float

    @property
    def ratio(self) -> float:
        return statistics.fmean(self.ratios)

    @property
    def valid(self) -> bool:
        return not self.idle and self.cpu < 0.8


def once(
    batching: str,
    number: int,
    args: argparse.Namespace,
    home: Path,
    lives: Sequence[tuple[Trajectory, list[int]]],
) -> Figures:
    """One run. What is appended is new in each: else a later one would hit what an earlier one has computed."""
    base = cluster_settings(args.engines, lives)
    source = random.Random(f"{batching} {number}")
    answered = 0

    async def agent(http: httpx.AsyncClient, model: str, number: int) -> None:
        nonlocal answered
        life, ids = lives[source.randrange(len(lives))]
        context, appended = turn(life, source)
        await ask(http, model, [*ids[:context], *random_ids(source, appended)])
        answered += 1

    running = Cluster(home, {**base, "batching": batching})
    try:
        (window,) = drive(
            running,
            AGENTS_PER_ENGINE * args.engines,
            agent,
            warm_s=args.warm,
            windows=1,
            window_s=args.seconds,
        )
        found = rows(running.traces())
    finally:
        running.close()
    since = window.since + time.time() - time.monotonic()
    steps = by_step(found, since, since + window.seconds, args.engines)
    if not steps:
        raise RuntimeError("no forward ended within the window; take a longer one")
    return Figures(
        [max(step) / statistics.fmean(step) for step in steps],
        sum(min(step) == 0 for step in steps),
        statistics.fmean(spent for step in steps for spent in step),
        answered / (args.warm + args.seconds),
        window.cpu,
    )


def turn(life: Trajectory, source: random.Random) -> tuple[int, int]:
    """(tokens before it, tokens that it appends) of a turn of an agent's life."""
    number = source.randrange(len(life.turns))
    context = sum(t.append_tokens + t.generate_tokens for t in life.turns[:number])
    return context, life.turns[number].append_tokens


def cluster_settings(engines: int, lives: Sequence[tuple[Trajectory, list[int]]]) -> dict[str, Any]:
    longest = max(len(ids) for _, ids in lives) + 2 * BLOCK_TOKENS
    room = 1 << 28
    return settings(1, 1, None, longest) | {
        "engines": engines,
        "block_tokens": BLOCK_TOKENS,
        "chunk_tokens": CHUNK_TOKENS,
        "prefill_buffer": room,
        "decode_buffer": room,
        "prefill_hbm": room,
        "decode_hbm": room,
        "trace_forwards": True,
        "log_format": "json",
        "log_bytes": 1 << 28,
        "synthetic": {
            "layers": LAYERS,
            "row_bytes": ROW_BYTES,
            "max_context": longest + 4 * 64,
            "forward_s": 0.0,
            "token_s": TOKEN_S,
            "attention_s": ATTENTION_S,
            "decode_step_s": 0.0,
            "all_to_all_bytes": 64,
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engines", type=int, default=4, help="of the group")
    parser.add_argument("--lives", type=int, default=24, help="trajectories whose KV is stored")
    parser.add_argument("--pairs", type=int, default=2, help="of runs, quota off and on")
    add_window_options(parser, warm_s=4.0, seconds=20.0)
    args = parser.parse_args(arguments)
    print(machine())
    source = random.Random(2)
    trace = make_trace("64K", trajectories=args.lives, seed=1, lengths=1 / SCALE)
    lives = [(life, random_ids(source, life.total_tokens)) for life in trace.trajectories]
    runs: dict[str, list[Figures]] = {batching: [] for batching in BATCHINGS}
    base = cluster_settings(args.engines, lives)
    quick = base["synthetic"] | {"token_s": 0.0, "attention_s": 0.0}
    quiet = base | {"synthetic": quick, "trace_forwards": False}
    with home_with(quiet, [ids for _, ids in lives]) as home:
        for number in range(args.pairs):
            for batching in in_turn(BATCHINGS, number):
                run = once(batching, number, args, home, lives)
                runs[batching].append(run)
                print(
                    f"{args.engines} engines  {batching:12} max/mean attention {run.ratio:.3f} "
                    f"(most {max(run.ratios):.2f}; {len(run.ratios)} forwards of {run.mean_s * 1e3:.0f} ms "
                    f"attention), {run.requests_per_s:.1f} requests/s, CPU {run.cpu:.0%}, {run.idle} forwards "
                    f"with an idle engine: {'valid' if run.valid else 'INVALID'}",
                    flush=True,
                )
    for batching, wanted in zip(BATCHINGS, (f"above {WANTED_OFF}", f"{WANTED_ON}"), strict=True):
        ratio = statistics.fmean(run.ratio for run in runs[batching])
        print(f"{batching:12} {ratio:.3f} (wanted {wanted})")
    return end(all(run.valid for found in runs.values() for run in found))


if __name__ == "__main__":
    sys.exit(main())
