"""Agents that arrive whatever the cluster does: which rate it serves within limits of latency."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.cli.bench.experiment import Plan, capacity
from dualpath.cli.bench.jct import EQUAL
from dualpath.cli.bench.workbench import Options, Workbench
from dualpath.loadgen.experiments.bounds import bounds_of
from dualpath.loadgen.experiments.systems import PE_ONLY
from dualpath.loadgen.experiments.workload import totals
from dualpath.loadgen.replay import OpenLoop, StopRules
from dualpath.loadgen.report.results import Claim, Run

REAL_SLO = {"ttft_s": 4.0, "tpot_s": 0.05}
"""Of means, in real seconds (the paper's)."""
AGENTS = 128
"""Emulated ones that arrive at the highest rate: what is written and read of their contexts fits a laptop."""


def online(options: Options) -> Plan:
    """Agents arrive as a Poisson process, at each rate for as long as at the others; the axis is in multiples of the
    rate at which prefill nodes' SNICs alone would be full."""
    bench = Workbench(options, None, at_most=AGENTS)
    (p, d), *_ = options.chosen_shapes(bench.own_shape())
    blocks = bench.settings()["block_tokens"]
    found = totals(bench.trace.trajectories, blocks)
    full_s = bounds_of(found, bench.profile, PE_ONLY, p, d).storage_s
    full_aps = bench.agents / full_s
    values = [x * full_aps for x in options.axis("0.8,1.2,1.8,2.4")]
    arriving_s = bench.agents / max(values)
    scale = bench.profile.scale
    slo = {
        "ttft_s": scale.seconds(REAL_SLO["ttft_s"]),
        "tpot_s": scale.seconds(REAL_SLO["tpot_s"]) * scale.tokens_each,
    }
    cells = [
        bench.cell(
            system,
            p,
            d,
            load=OpenLoop(aps, max(round(arriving_s * aps), 1), options.seed),
            stop=StopRules(ttft_s=2 * slo["ttft_s"], window_s=10.0, lookback_s=1e6, max_s=120.0),
            x=round(aps, 3),
        )
        for aps in values
        for system in options.chosen_systems("basic,pe-only,dualpath")
    ]
    turns = 1 + options.turns
    return bench.plan(
        "online",
        "Online: latency by load",
        "How many agents per second can be served within the SLO (TTFT ≤ 4 s, TPOT ≤ 50 ms, means, real seconds)?",
        cells,
        axis="agents per second",
        slo=slo,
        claims=_claims,
        notes=(
            f"Each agent makes {turns} turns, in the paper its whole life. {full_aps:.2f} agents/s fill the SNICs of "
            f"prefill nodes; the rates are multiples of that, and each lasts {arriving_s:.0f} s.",
            f"The SLO in emulated seconds: TTFT {slo['ttft_s']:g}, TPOT {slo['tpot_s']:g} (a token stands for "
            f"{scale.tokens_each}). Rates above one that broke it are left out; between the highest that kept it and "
            "the lowest that broke it, middles are tried.",
        ),
    )


def _claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    best = capacity(runs)
    found = [
        Claim(
            f"agents/s within the SLO, dualpath over {base}",
            "1.67 × (27B), 2.25 × (660B) over Basic",
            f"{best['dualpath'] / best[base]:.2f} ×",
        )
        for base in ("basic", "pe-only")
        if best.get(base) and best.get("dualpath")
    ]
    return (*found, *_not_worse(runs))


def _not_worse(runs: Sequence[Run]) -> list[Claim]:
    """TTST and TPOT of dualpath beside pe-only's at the highest rate that both served."""
    served = {
        system: {run.x: run for run in runs if run.system == system and run.met_slo and run.valid}
        for system in ("pe-only", "dualpath")
    }
    common = [x for x in served["pe-only"] if x in served["dualpath"] and x is not None]
    if not common:
        return []
    x = max(common)
    found = []
    for name in ("ttst", "tpot"):
        before, after = (served[system][x].latencies[name].mean for system in served)
        found.append(
            Claim(
                f"{name.upper()} at {x:g} agents/s, dualpath against pe-only",
                "not worse",
                f"{after * 1e3:.0f} ms, {before * 1e3:.0f} ms: {after / before:.2f}",
                after <= before * (1 + EQUAL),
            )
        )
    return found
