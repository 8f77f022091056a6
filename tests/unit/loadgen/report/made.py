"""Experiments that never ran, for tests of what is drawn of them."""

from __future__ import annotations

from dualpath.loadgen.report.results import Claim, Dist, Experiment, Gate, NicSeries, Run


def dist(mean: float) -> Dist:
    return Dist(10, mean, {"50": mean, "90": mean * 1.5, "99": mean * 2})


def run(
    system: str,
    jct_s: float,
    *,
    shape: str = "1P1D",
    repetition: int = 0,
    x: float | None = None,
    ok: bool = True,
    met_slo: bool | None = None,
) -> Run:
    nics = tuple(
        NicSeries(node, f"{node}.snic", "rx", 1e6, (0.5, 1.0, 1.5), (5e5, 1e6, 2e5))
        for node in ("prefill-0", "decode-0")
    )
    engine = NicSeries("prefill-0", "prefill-0.cnic0", "tx", 8e6, (0.5,), (1e6,), high_share=0.2)
    return Run(
        system=system,
        shape=shape,
        repetition=repetition,
        x=x,
        settings={"mode": system},
        jct_s=jct_s,
        duration_s=jct_s,
        turns=40,
        wanted_turns=40,
        ended="done",
        latencies={name: dist(jct_s / 10) for name in ("ttft", "ttst", "tpot", "e2e", "agent")},
        bounds_s={"storage": jct_s * 0.9, "compute": 1.0, "decode": 2.0},
        parts_s={"scheduling": 0.1, "allocation": 0.2, "reading": 0.5, "prefill": 0.3},
        hits={"prefill": 900, "decode": 500, "hot": 0, "computed": 40},
        nics=(*nics, engine),
        busy={"prefill": 0.9, "decode": 0.5, "all": 0.7},
        balance=1.3,
        cpu=0.4,
        cpu_s={"prefill": 1.0},
        client_lag_ms=1.0,
        start_s=5.0,
        gates=(Gate("CPU not the limit", ok, "40% of the cores <busy>"),),
        met_slo=met_slo,
    )


def experiment(*runs: Run, axis: str = "", slo: dict[str, float] | None = None) -> Experiment:
    return Experiment(
        kind="offline",
        title="Offline & <all>",
        question="Which is faster?",
        axis=axis,
        command="dualpath bench offline --out 'a <b>'",
        began="2026-11-30 12:00",
        duration_s=120.0,
        machine={"cores": 2, "memory_bytes": 24 << 30, "load_average": 0.1},
        profile={"name": "laptop", "figures": [["snic", 1e6, "chosen <so>"]]},
        time=0.25,
        workload={"agents": 8},
        runs=runs,
        claims=(Claim("dualpath over basic", "1.78 ×", "1.7 ×", True),),
        notes=("A note.",),
        slo=slo or {},
    )
