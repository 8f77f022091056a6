"""Runs the cells of an experiment one at a time, repetitions in turns, and writes what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from dualpath.cli.bench.clusters import Clusters
from dualpath.cli.bench.live import Live
from dualpath.cli.bench.measure import Cell, measure, store_contexts
from dualpath.cli.started import NotStarted, ends_in_order
from dualpath.cli.words import INTERRUPTED, complain
from dualpath.loadgen.experiments.workload import contexts
from dualpath.loadgen.machine import describe_machine
from dualpath.loadgen.report.page import write_page
from dualpath.loadgen.report.png import PngUnavailable, write_png
from dualpath.loadgen.report.results import Claim, Experiment, Run, save
from dualpath.settings.hardware import HardwareProfile

INVALID = 4
"""Exit code where a gate did not hold: the figures are there, and are of something else."""


@dataclass(frozen=True)
class Plan:
    """An experiment before it runs. `claims` are made of all runs. With an `slo`, a system that broke it at one place
    is not asked for higher ones, and where its limit lies between two places is narrowed down to a factor of
    1 + `precision`."""

    kind: str
    title: str
    question: str
    cells: Sequence[Cell]
    profile: HardwareProfile | None
    workload: dict[str, Any]
    repetitions: int = 1
    axis: str = ""
    claims: Callable[[Sequence[Run]], tuple[Claim, ...]] = lambda runs: ()
    notes: tuple[str, ...] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    precision: float = 0.1
    models: Path | None = None


@dataclass(frozen=True)
class Output:
    """Where results go: `PATH.json`, `PATH.html` and, where it can be drawn, `PATH.png`."""

    path: Path

    def write(self, experiment: Experiment, say: Callable[[str], None]) -> None:
        """Raises OSError."""
        base = self.path
        save(experiment, Path(f"{base}.json"))
        write_page(experiment, Path(f"{base}.html"))
        written = [".json", ".html"]
        try:
            write_png(experiment, Path(f"{base}.png"))
            written.append(".png")
        except PngUnavailable as reason:
            say(f"no picture: {reason}")
        say("written: " + ", ".join(f"{base}{suffix}" for suffix in written))


def carry_out(plan: Plan, output: Output, console: Console) -> int:
    """Run, show, write. Exit code: 0 all gates held; INVALID; 1 a cluster failed; 130 interrupted, with what was
    measured until then written too."""
    live = Live(console, len(plan.cells) * plan.repetitions)
    began, clock = time.strftime("%Y-%m-%d %H:%M"), time.monotonic()
    runs: list[Run] = []
    machine = describe_machine()
    code = 0
    live.say(f"{plan.title}: {len(plan.cells)} runs, {plan.repetitions} times, in turns")
    try:
        with ends_in_order(), live.showing():
            _run_all(plan, live, runs)
    except (NotStarted, ValueError, RuntimeError) as error:
        complain(str(error))
        code = 1
    except KeyboardInterrupt:
        live.say("interrupted")
        code = INTERRUPTED
    if not runs:
        return code or 1
    left_out = uncounted(runs) if plan.slo else ()
    experiment = Experiment(
        kind=plan.kind,
        title=plan.title,
        question=plan.question,
        axis=plan.axis,
        command=" ".join(["dualpath", *sys.argv[1:]]),
        began=began,
        duration_s=time.monotonic() - clock,
        machine=machine,
        profile={} if plan.profile is None else _profile(plan.profile),
        time=1.0 if plan.profile is None else plan.profile.scale.time,
        workload=plan.workload,
        runs=tuple(runs),
        claims=plan.claims(runs),
        notes=(*plan.notes, *left_out),
        slo=dict(plan.slo),
        capacity=capacity(runs) if plan.slo else {},
        interrupted=code != 0,
    )
    for text in (*summary(experiment), *left_out):
        live.say(text)
    try:
        output.write(experiment, live.say)
    except OSError as error:
        complain(f"results cannot be written: {error}; name another place with --out")
        return 1
    return code or (0 if experiment.valid else INVALID)


def _run_all(plan: Plan, live: Live, runs: list[Run]) -> None:
    with TemporaryDirectory(prefix="dualpath-bench-") as directory:
        clusters = Clusters(Path(directory), plan.models)
        stores: dict[object, Path] = {}

        def run(cell: Cell, repetition: int) -> Run:
            stored = _stored(clusters, cell, stores, Path(directory), live)
            live.begins(_what(cell), cell.trace.turns)
            made = measure(clusters, cell, repetition, stored, live.progressed, plan.slo)
            runs.append(made)
            live.ended(made)
            return made

        for repetition in range(plan.repetitions):
            if plan.slo:
                search(plan, live, partial(run, repetition=repetition))
                continue
            # Every other round the other way, so that what drifts meets all alike.
            for cell in reversed(plan.cells) if repetition % 2 else plan.cells:
                run(cell, repetition)


def search(plan: Plan, live: Live, run: Callable[[Cell], Run]) -> None:
    """All cells but those above one that broke the SLO; then, for each system, cells between. What was invalid is
    measured once more."""
    good: dict[tuple[str, str], Cell] = {}
    bad: dict[tuple[str, str], Cell] = {}

    def served(cell: Cell) -> bool:
        made = run(cell)
        if not made.valid:
            live.more()
            made = run(cell)
        return bool(made.met_slo)

    for cell in plan.cells:
        key = (cell.system.name, cell.shape)
        if key in bad:
            live.omitted(f"{_what(cell)}: left out, as less was too much")
            continue
        (good if served(cell) else bad)[key] = cell
    for key in [key for key in bad if key in good]:
        while (middle := good[key].between(bad[key], plan.precision)) is not None:
            live.more()
            (good if served(middle) else bad)[key] = middle


def _what(cell: Cell) -> str:
    return f"{cell.shape} {cell.system.name}" + ("" if cell.x is None else f" at {cell.x:g}")


def _stored(
    clusters: Clusters, cell: Cell, stores: dict[object, Path], directory: Path, live: Live
) -> Path | None:
    """Where the contexts of the cell's trace are; they are stored the first time that the trace is seen."""
    if not cell.stored:
        return None
    first = contexts(cell.trace)
    key = tuple((agent.seed, agent.turns) for agent in first.trajectories)
    if key not in stores:
        live.say(f"storing {len(cell.trace)} contexts")
        kept = directory / f"store-{len(stores)}"
        store_contexts(clusters, cell, first, kept)
        stores[key] = kept
    return stores[key]


def capacity(runs: Iterable[Run]) -> dict[str, float]:
    """The highest rate of each system at which all of its valid runs, and one at least, met the SLO."""
    met: dict[str, dict[float, bool]] = {}
    for run in runs:
        if run.x is not None and run.met_slo is not None:
            rates = met.setdefault(run.system, {})
            if run.valid:
                rates[run.x] = rates.get(run.x, True) and run.met_slo
    return {
        system: max((x for x, ok in rates.items() if ok), default=0.0)
        for system, rates in met.items()
    }


def uncounted(runs: Iterable[Run]) -> tuple[str, ...]:
    """Says which runs do not count for `capacity`; nothing where all do."""
    found = [f"{run.system} at {run.x:g}" for run in runs if not run.valid and run.x is not None]
    if not found:
        return ()
    return (f"Runs whose gates did not hold do not count for capacity: {', '.join(found)}.",)


def summary(experiment: Experiment) -> list[str]:
    """For the end of the command's output."""
    lines = [
        f"{claim.what}: {claim.measured} ({_published(claim.published)})"
        + ("" if claim.good is None else "" if claim.good else "  NOT as wanted")
        for claim in experiment.claims
    ]
    lines += [
        f"highest rate within the SLO, {system}: {rate:g} agents/s"
        for system, rate in experiment.capacity.items()
    ]
    bad = sum(not run.valid for run in experiment.runs)
    lines.append(
        f"all gates held in {len(experiment.runs) - bad} of {len(experiment.runs)} runs"
        + ("" if not bad else ": figures of the others are of something else than they say")
    )
    return lines


def _published(said: str) -> str:
    return said if said.startswith("not published") else f"published: {said}"


def _profile(profile: HardwareProfile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "model": profile.model.name,
        "gpus": profile.node.gpus,
        "scale": asdict(profile.scale),
        "shape": list(profile.shape),
        "emulated_layers": profile.emulated_layers,
        "ring_layers": profile.ring_layers,
        "block_tokens": profile.block_tokens,
        "figures": [list(figure) for figure in profile.figures()],
    }
