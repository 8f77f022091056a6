"""One run of an experiment: a cluster, a replay against it, and what both say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from dualpath.cli.bench.answers import digests, hits_by_source, recompute, ttft_parts
from dualpath.cli.bench.clusters import Clusters, Running
from dualpath.cli.bench.sampling import Sampler
from dualpath.loadgen.experiments import gates
from dualpath.loadgen.experiments.bounds import Bounds, bounds_of
from dualpath.loadgen.experiments.systems import System, shape_name
from dualpath.loadgen.experiments.workload import totals
from dualpath.loadgen.replay import (
    STOPPED,
    ClosedLoop,
    Latencies,
    Load,
    OpenLoop,
    Progress,
    ReplayResult,
    StopRules,
    Target,
    TurnRecord,
    middle,
    replay,
)
from dualpath.loadgen.report.results import Dist, Gate, Run
from dualpath.loadgen.summary import Summary
from dualpath.loadgen.traces.model import Trace
from dualpath.settings.hardware import HardwareProfile

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Cell:
    """What is run: a system on P and D nodes with `settings` of the profile, under a load. `stored`: the shards have
    the contexts of the trace from the start."""

    system: System
    prefill: int
    decode: int
    settings: Mapping[str, Any]
    trace: Trace
    load: Load
    profile: HardwareProfile | None = None
    """None: a real model; it has no bounds, and its answers are not computed anew."""
    stored: bool = False
    stop: StopRules | None = None
    x: float | None = None
    target: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        return shape_name(self.prefill, self.decode)

    def between(self, higher: Cell, precision: float) -> Cell | None:
        """This one at a rate of arrivals between its own and a higher one, for as long; None where those differ by a
        factor of `1 + precision` at most, or nothing arrives."""
        low, high = self.load, higher.load
        if not (isinstance(low, OpenLoop) and isinstance(high, OpenLoop) and low.aps and high.aps):
            return None
        if (aps := middle(low.aps, high.aps, precision)) is None:
            return None
        agents = low.agents and max(round(low.agents * aps / low.aps), 1)
        return replace(self, load=replace(low, aps=aps, agents=agents), x=round(aps, 3))

    def all_settings(self) -> dict[str, Any]:
        return {
            **self.settings,
            "prefill": self.prefill,
            "decode": self.decode,
            **self.system.settings,
        }


def measure(
    clusters: Clusters,
    cell: Cell,
    repetition: int,
    store: Path | None,
    on_progress: OnProgress,
    slo: Mapping[str, float],
) -> Run:
    """`store`: the contexts, as `store_contexts` kept them; `slo`: limits of mean `ttft_s` and `tpot_s`, or nothing.
    Raises NotStarted, ValueError for settings that are wrong, and what `replay` raises."""
    with clusters.cluster(cell.all_settings(), store=store) as running:
        sampler = Sampler(running.record)
        target = replace(_target(running, cell), explain=True)
        # Seeds that the load generator draws are not in its records.
        checks = cell.profile is not None and not target.seeded
        with sampler:
            began = time.monotonic()
            result = asyncio.run(
                replay(
                    cell.trace,
                    target,
                    cell.load,
                    stop=cell.stop,
                    keep_ids=True,
                    on_progress=on_progress,
                )
            )
        wrong = recompute(running.settings, cell.trace, result) if checks else None
        run = _run(cell, repetition, running, sampler, began, result, wrong)
    return structs.replace(run, met_slo=met(run, slo) if slo else None)


def _target(running: Running, cell: Cell) -> Target:
    return Target(url=running.base_url, **{"prompts": "ids", **cell.target})


def met(run: Run, slo: Mapping[str, float]) -> bool:
    """Whether means kept to it, nothing failed, and the replay did not end for being overloaded."""
    means = {"ttft_s": run.latencies["ttft"].mean, "tpot_s": run.latencies["tpot"].mean}
    within = all(means[name] <= limit for name, limit in slo.items())
    return within and not run.errors and run.ended != "overloaded"


def store_contexts(clusters: Clusters, cell: Cell, trace: Trace, keep: Path) -> None:
    """Have the first turns of the cell's trace, which is `trace`, stored on nodes whose NICs are not paced and that
    compute in no time, where they are synthetic. Raises RuntimeError where one was not."""
    free = {**cell.settings, "prefill": 1, "decode": 1}
    for nic in ("snic_bandwidth", "cnic_bandwidth"):
        free.pop(nic, None)
    if "synthetic" in free:
        at_once = {"token_s": 0.0, "attention_s": 0.0, "decode_step_s": 0.0}
        free["synthetic"] = {**free["synthetic"], **at_once}
    with clusters.cluster(free, keep=keep) as running:
        target = _target(running, cell)
        result = asyncio.run(replay(trace, target, ClosedLoop(len(trace))))
        if result.errors:
            raise RuntimeError("contexts could not be stored: " + "; ".join(result.warnings))


def _run(
    cell: Cell,
    repetition: int,
    running: Running,
    sampler: Sampler,
    began: float,
    result: ReplayResult,
    wrong: tuple[int, int] | None,
) -> Run:
    good = [turn for turn in result.turns if turn.ok]
    stopped = sum(turn.error == STOPPED for turn in result.turns)
    offset_s = began - sampler.began
    since_s, until_s = (at + offset_s for at in _full(cell, result))
    series = sampler.series()
    busy = gates.busy(series, since_s, until_s)
    bounds = _bounds(cell, result)
    lag_s = max(result.lag.loop_s.p(99), result.lag.send_s.p(99))
    wanted = len(result.turns) - stopped
    if isinstance(cell.load, ClosedLoop):
        agents = cell.trace.agents(cell.load.agents)
        wanted = sum(len(agent.turns) for agent in agents)
    checks: list[Gate] = [gates.complete(len(good), wanted, result.errors)]
    if wrong is not None:
        checks.append(gates.right(*wrong))
    if not stopped:
        ideal = could_hit(good, running.settings.block_tokens, stored=cell.stored)
        checks.append(gates.hits(sum(t.cached_tokens for t in good), ideal))
    if isinstance(cell.load, ClosedLoop):
        checks.append(gates.bottleneck(cell.system, bounds, busy))
    if cell.profile is not None:
        # A real model computes on the CPU.
        checks.append(gates.cpu(sampler.cpu))
    latencies = _latencies(cell, result)
    checks.append(gates.client(lag_s, latencies.ttft_s.p(50)))
    return Run(
        system=cell.system.name,
        shape=cell.shape,
        repetition=repetition,
        x=cell.x,
        settings=cell.all_settings(),
        jct_s=result.jct_s,
        duration_s=result.duration_s,
        turns=len(good),
        wanted_turns=wanted,
        ended=result.ended,
        latencies={
            name: _dist(getattr(latencies, f"{name}_s"))
            for name in ("ttft", "ttst", "tpot", "e2e", "agent")
        },
        bounds_s={} if bounds is None else bounds.named(),
        parts_s=ttft_parts(good),
        hits=hits_by_source(good),
        nics=series,
        busy=busy,
        balance=gates.balance(series, since_s, until_s),
        cpu=sampler.cpu,
        cpu_s=sampler.cpu_s,
        client_lag_ms=lag_s * 1e3,
        start_s=running.start_s,
        gates=tuple(checks),
        errors=result.errors,
        replay=result.as_dict(records=False),
        answers={} if cell.profile is not None else digests(good),
    )


def could_hit(turns: Sequence[TurnRecord], block_tokens: int, *, stored: bool) -> int:
    """Prompt tokens that a perfect cache hits, by the lengths that the server counted: of text only it knows them."""
    hits = 0
    known: dict[int, int] = {}
    for turn in sorted(turns, key=lambda turn: (turn.agent, turn.turn)):
        before = known.get(turn.agent, turn.prompt_tokens if stored else 0)
        hits += min(before, turn.prompt_tokens - 1) // block_tokens * block_tokens
        known[turn.agent] = turn.prompt_tokens + turn.generated_tokens - 1
    return hits


def _full(cell: Cell, result: ReplayResult) -> tuple[float, float]:
    """While all agents were at work: past the first tenth, and before the first of them had ended. Of an open loop:
    from a quarter of the time in which agents arrive to the end of it."""
    if isinstance(cell.load, OpenLoop):
        last = max((agent.due_s for agent in result.agents), default=0.0)
        return last / 4, last
    first = min((a.end_s for a in result.agents if a.end_s), default=result.duration_s)
    begin = 0.1 * result.duration_s
    return (begin, first) if first > 2 * begin else (begin, result.duration_s)


def _latencies(cell: Cell, result: ReplayResult) -> Latencies:
    """Of all turns; of an open loop, of those due while it was full, and that had the time to end."""
    if not isinstance(cell.load, OpenLoop):
        return result.latencies()
    since_s, until_s = _full(cell, result)
    return Latencies.of(
        [turn for turn in result.turns if since_s <= turn.due_s <= until_s], result.agents
    )


def _bounds(cell: Cell, result: ReplayResult) -> Bounds | None:
    if cell.profile is None or not isinstance(cell.load, ClosedLoop):
        return None
    block_tokens = int(cell.settings["block_tokens"])
    agents = cell.trace.agents(len(result.agents))
    stored = cell.stored
    return bounds_of(
        totals(agents, block_tokens, stored=stored),
        cell.profile,
        cell.system,
        cell.prefill,
        cell.decode,
    )


def _dist(summary: Summary) -> Dist:
    return Dist(summary.count, summary.mean, dict(summary.percentiles))
