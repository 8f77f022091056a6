"""Experiments along an axis: what systems gain as a workload or a memory changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualpath.cli.bench.experiment import Plan
from dualpath.cli.bench.jct import gain_of, jct, times
from dualpath.cli.bench.workbench import Options, Workbench
from dualpath.loadgen.experiments.systems import ABLATION, shape_name
from dualpath.loadgen.experiments.workload import scaled_turns
from dualpath.loadgen.report.results import Claim, Run
from dualpath.loadgen.traces import Trace

ABLATION_AGENTS = 64
"""Emulated ones at most, for the published 2,048: six nodes serve them in half a minute."""


def append(options: Options) -> Plan:
    return _sweep(
        options,
        "append",
        "Appended tokens scaled",
        "How much is gained as turns append more, so that computing takes over from reading?",
        "appended tokens, times",
        lambda trace, x: scaled_turns(trace, append=x),
        "1.82 to 1.99 × over Basic (660B, 64K, 1,024 agents); falls as appends grow",
    )


def generate(options: Options) -> Plan:
    return _sweep(
        options,
        "generate",
        "Generated tokens scaled",
        "How much is gained as answers get longer, so that decoding takes over from reading?",
        "generated tokens, times",
        lambda trace, x: scaled_turns(trace, generate=x),
        "as with appended tokens: falls as answers grow",
    )


def _sweep(
    options: Options,
    kind: str,
    title: str,
    question: str,
    axis: str,
    scaled: Callable[[Trace, float], Trace],
    published: str,
) -> Plan:
    bench = Workbench(options, 1024)
    (p, d), *_ = options.chosen_shapes(bench.own_shape())
    values = options.axis("1,4,8,16" if kind == "generate" else "1,4,12,24")
    traces = {x: scaled(bench.trace, x) for x in values}
    settings = bench.settings(*traces.values())
    systems = options.chosen_systems("pe-only,dualpath")
    cells = [
        bench.cell(system, p, d, settings=settings, trace=traces[x], x=x)
        for x in values
        for system in systems
    ]

    def claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
        place = shape_name(p, d)
        base = systems[0].name
        found = []
        for system in systems[1:]:
            gains = {
                x: gain
                for x in values
                if (
                    gain := gain_of(times(runs, base, place, x), times(runs, system.name, place, x))
                )
            }
            if gains:
                said = ", ".join(f"{gain} at {x:g}" for x, gain in gains.items())
                fine = not any(gain.is_loss for gain in gains.values())
                found.append(
                    Claim(
                        f"{place}: {system.name} over {base}",
                        f"{published}; never below 1",
                        said,
                        fine,
                    )
                )
        return tuple(found)

    return bench.plan(kind, title, question, cells, axis=axis, claims=claims)


def ablation(options: Options) -> Plan:
    bench = Workbench(options, 2048, at_most=ABLATION_AGENTS)
    (p, d), *_ = options.chosen_shapes("2P4D")
    values = options.axis("0.5,1,1.5")
    settings = bench.settings()
    cells = [
        bench.cell(
            system,
            p,
            d,
            settings={**settings, "prefill_hbm": round(settings["prefill_hbm"] * x)},
            x=x,
        )
        for x in values
        for system in ABLATION
    ]
    published = {"+ layerwise": "−17.2 %", "+ dual path": "−38.2 %", "+ scheduling": "−45.6 %"}

    def claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
        place = shape_name(p, d)
        return tuple(
            Claim(
                f"{system.name}, HBM × {x:g}: JCT against basic",
                published.get(system.name, "not published") if x == 1 else "not published",
                f"{100 * (here / base - 1):+.1f} %".replace("-", "−"),
            )
            for x in values
            for system in ABLATION[1:]
            if (base := jct(runs, "basic", place, x)) and (here := jct(runs, system.name, place, x))
        )

    return bench.plan(
        "ablation",
        "Ablation",
        "What does each technique add, and how does that depend on the memory of prefill engines?",
        cells,
        axis="HBM of prefill engines, times",
        claims=claims,
        notes=("Published: 660B on 2P4D, 64K, 1,024 and 2,048 agents.",),
    )
