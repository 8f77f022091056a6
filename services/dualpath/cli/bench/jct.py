"""Experiments whose figure is the job completion time of systems on shapes, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from dualpath.cli.bench.experiment import Plan
from dualpath.cli.bench.workbench import Options, Workbench
from dualpath.loadgen.experiments.systems import BALANCE, DUALPATH, PE_ONLY, shape
from dualpath.loadgen.replay import ClosedLoop
from dualpath.loadgen.report.results import Claim, Run

EQUAL = 0.1
"""What the paper calls equal may differ by so much here."""
LOSS = 0.03
"""Slower by so much is no loss yet."""


def offline(options: Options) -> Plan:
    bench = Workbench(options, 2048)
    return bench.plan(
        "offline",
        "Offline: job completion time",
        "All agents start at once. How long until the last has ended, by system, and how near is that to what the "
        "hardware allows?",
        [
            bench.cell(system, p, d)
            for p, d in options.chosen_shapes("1P1D,2P1D,1P2D")
            for system in options.chosen_systems("basic,pe-only,dualpath,oracle")
        ],
        claims=_offline_claims,
    )


def ratio(options: Options) -> Plan:
    bench = Workbench(options, 2048)
    return bench.plan(
        "ratio",
        "P/D ratios: job completion time",
        "What does the second read path give at each ratio of prefill to decode nodes?",
        [
            bench.cell(system, p, d)
            for p, d in options.chosen_shapes("1P1D,2P1D,1P2D,2P2D")
            for system in options.chosen_systems("basic,pe-only,dualpath")
        ],
        claims=_ratio_claims,
    )


def times(runs: Sequence[Run], system: str, place: str, x: float | None = None) -> list[float]:
    """Job completion times of a system's runs on a shape."""
    return [run.jct_s for run in runs if (run.system, run.shape) == (system, place) and run.x == x]


def jct(runs: Sequence[Run], system: str, place: str, x: float | None = None) -> float:
    """Median; 0 where there is none."""
    found = times(runs, system, place, x)
    return median(found) if found else 0.0


@dataclass(frozen=True)
class Gain:
    """How many times faster one system is than another: of medians, and the least and the most that single runs of
    both give."""

    middle: float
    least: float
    most: float

    @property
    def is_loss(self) -> bool:
        """Slower by more than runs differ, and by more than LOSS."""
        return self.most < 1 and self.middle < 1 - LOSS

    def __str__(self) -> str:
        spread = f" ({self.least:.2f} to {self.most:.2f})" if self.least < self.most else ""
        return f"{self.middle:.2f} ×{spread}"


def gain_of(slow: Sequence[float], fast: Sequence[float]) -> Gain | None:
    """Of job completion times; None where either has none."""
    if not (slow and fast):
        return None
    return Gain(median(slow) / median(fast), min(slow) / max(fast), max(slow) / min(fast))


def _offline_claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    return (*speedups(runs), *_equalities(runs, "basic"), *_equalities(runs, "pe-only"))


def _ratio_claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    found = []
    for base in ("basic", "pe-only"):
        gains = [
            slow / fast
            for place in dict.fromkeys(run.shape for run in runs)
            if (slow := jct(runs, base, place)) and (fast := jct(runs, "dualpath", place))
        ]
        if gains:
            found.append(
                Claim(
                    f"dualpath over {base}, all ratios",
                    "1.64 × on average, 2.46 × at most (DS 27B, over Basic)",
                    f"{fmean(gains):.2f} × on average, {max(gains):.2f} × at most",
                )
            )
    return (*found, *_offline_claims(runs))


def speedups(runs: Sequence[Run]) -> list[Claim]:
    found = []
    for place in dict.fromkeys(run.shape for run in runs):
        p, d = shape(place)
        fast = jct(runs, "dualpath", place)
        for base, said in (
            ("basic", "up to 1.78 × (DS 27B, 1P1D), 1.87 × (660B, 2P4D)"),
            ("pe-only", f"not published; the bound is {(p + d) / p:.2f} × where storage is all"),
        ):
            if gain := gain_of(times(runs, base, place), times(runs, "dualpath", place)):
                found.append(Claim(f"{place}: dualpath over {base}", said, str(gain)))
        if fast and (best := jct(runs, "oracle", place)):
            found.append(
                Claim(
                    f"{place}: dualpath over oracle, times slower",
                    "1.09 to 1.85 (DS 27B, 1P1D)",
                    f"{fast / best:.2f}",
                )
            )
    return found


def _equalities(runs: Sequence[Run], base: str) -> list[Claim]:
    """The paper's three pairs, with `base` in Basic's place."""
    pairs = (
        ((base, "1P1D"), (base, "1P2D")),
        (("dualpath", "1P1D"), (base, "2P1D")),
        (("dualpath", "2P1D"), ("dualpath", "1P2D")),
    )
    found = []
    for (one, here), (other, there) in pairs:
        left, right = jct(runs, one, here), jct(runs, other, there)
        if left and right and (base == "pe-only" or base in (one, other)):
            found.append(
                Claim(
                    f"{one} {here} against {other} {there}",
                    "equal"
                    + (
                        " (with Basic; here with pe-only, which prefills layerwise too)"
                        if base == "pe-only" and base in (one, other)
                        else ""
                    ),
                    f"{left:.2f} s, {right:.2f} s: {left / right:.2f}",
                    abs(left / right - 1) <= EQUAL,
                )
            )
    return found


def balance(options: Options) -> Plan:
    bench = Workbench(options, 2048)
    cells = [
        bench.cell(system, p, d) for p, d in options.chosen_shapes("1P2D") for system in BALANCE
    ]

    def claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
        published = {"round robin": "1.53", "adaptive": "1.18 (scheduled)"}
        return tuple(
            Claim(
                f"{system.name}: largest over mean of the SNICs",
                published.get(system.name, "not published"),
                f"{fmean(found):.2f}",
            )
            for system in BALANCE
            if (found := [run.balance for run in runs if run.system == system.name])
        )

    return bench.plan(
        "balance",
        "Balance of the storage NICs",
        "Do all nodes' storage NICs read alike at all times?",
        cells,
        claims=claims,
        notes=(
            "Over windows of half an (emulated) second, without the tail. Published: three machines.",
        ),
    )


def rollout(options: Options, samples: int) -> Plan:
    bench = Workbench(options, 512)
    (p, d), *_ = options.chosen_shapes(bench.own_shape())
    trace = bench.trace.repeated(samples)
    load = ClosedLoop(len(trace))
    cells = [
        bench.cell(
            system,
            p,
            d,
            trace=trace,
            load=load,
            target={"seeded": True, "extra": {"temperature": 1}},
        )
        for system in options.chosen_systems(f"{PE_ONLY.name},{DUALPATH.name}")
    ]
    plan = bench.plan(
        "rollout",
        f"Rollout: {samples} samples of each of {bench.agents} prompts",
        "Reinforcement learning samples the same long prompts many times. How long until all samples are there?",
        cells,
        claims=lambda runs: tuple(speedups(runs)),
        notes=("Samples have seeds of their own, so their answers are not computed anew.",),
    )
    return replace(plan, workload={**plan.workload, "samples of each": samples})
