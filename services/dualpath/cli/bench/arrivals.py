"""Agents that arrive whatever the cluster does: which rate it serves within limits of latency."""

from __future__ import annotations

from collections.abc import Sequence

from dualpath.cli.bench.experiment import Plan
from dualpath.cli.bench.workbench import Options, Workbench
from dualpath.loadgen.experiments.bounds import bounds_of
from dualpath.loadgen.experiments.systems import PE_ONLY
from dualpath.loadgen.experiments.workload import totals
from dualpath.loadgen.replay import OpenLoop, StopRules
from dualpath.loadgen.report.results import Claim, Run

REAL_SLO = {"ttft_s": 4.0, "tpot_s": 0.05}
"""Of means, in real seconds (the paper's)."""


def online(options: Options) -> Plan:
    """Agents arrive as a Poisson process; the axis is in multiples of the rate at which prefill nodes' SNICs alone
    would be full."""
    bench = Workbench(options, 2048)
    (p, d), *_ = options.chosen_shapes(bench.own_shape())
    blocks = bench.settings()["block_tokens"]
    found = totals(bench.trace.trajectories, blocks)
    full_s = bounds_of(found, bench.profile, PE_ONLY, p, d).storage_s
    full_aps = bench.agents / full_s
    values = [x * full_aps for x in options.axis("0.4,0.7,0.9,1.2,1.5,1.8")]
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
            load=OpenLoop(aps=aps, agents=bench.agents, seed=options.seed),
            stop=StopRules(ttft_s=2 * slo["ttft_s"], window_s=10.0, lookback_s=1e6, max_s=120.0),
            x=round(aps, 3),
        )
        for aps in values
        for system in options.chosen_systems("basic,pe-only,dualpath")
    ]

    def claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
        met: dict[str, float] = {}
        for run in runs:
            if run.met_slo and run.x is not None:
                met[run.system] = max(met.get(run.system, 0.0), run.x)
        best = met.get("dualpath", 0.0)
        return tuple(
            Claim(
                f"agents/s within the SLO, dualpath over {base}",
                "1.67 × (27B), 2.25 × (660B) over Basic",
                f"{best / met[base]:.2f} ×",
            )
            for base in ("basic", "pe-only")
            if met.get(base)
        )

    turns = 1 + options.turns
    return bench.plan(
        "online",
        "Online: latency by load",
        "How many agents per second can be served within the SLO (TTFT ≤ 4 s, TPOT ≤ 50 ms, means, real seconds)?",
        cells,
        axis="agents per second",
        slo=slo,
        claims=claims,
        notes=(
            f"Each agent makes {turns} turns, in the paper its whole life. {full_aps:.2f} agents/s fill the SNICs of "
            "prefill nodes; the rates are multiples of that.",
            f"The SLO in emulated seconds: TTFT {slo['ttft_s']:g}, TPOT {slo['tpot_s']:g} (a token stands for "
            f"{scale.tokens_each}). A rate above one that broke it is left out.",
        ),
    )
