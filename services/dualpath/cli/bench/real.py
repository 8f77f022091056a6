"""A real model on emulated storage NICs: pe-only against dualpath, real text, and the same answers in both.

Contexts are stored beforehand, so that each turn reads a long one, computes a few dozen tokens, and says a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dualpath.cli.bench.experiment import Plan
from dualpath.cli.bench.jct import speedups
from dualpath.cli.bench.measure import Cell
from dualpath.loadgen.experiments.systems import DUALPATH, PE_ONLY
from dualpath.loadgen.experiments.workload import longest, stretches
from dualpath.loadgen.replay import ClosedLoop
from dualpath.loadgen.report.results import Claim, Run
from dualpath.loadgen.traces import make_trace
from dualpath.settings import load_settings
from dualpath.settings.hardware import PATIENCE_S

LENGTHS = 1 / 16
"""Of the 32K trace: contexts of about a thousand tokens, as a CPU computes them in seconds."""


@dataclass(frozen=True)
class RealOptions:
    """`snic`: bandwidth of each node's storage NIC, low enough that reading takes longer than computing: SmolLM2's
    KV of a context is about 50 MB in float32, and what a turn appends is computed in a quarter of a second."""

    model: str = "smollm2"
    snic: str = "10MB/s"
    agents: int = 8
    turns: int = 2
    repetitions: int = 1
    seed: int = 0


def real(options: RealOptions) -> Plan:
    """Raises ValueError for settings that are wrong."""
    whole = make_trace("32K", trajectories=options.agents, seed=options.seed, lengths=LENGTHS)
    trace = stretches(whole, options.agents, options.turns, options.seed)
    settings = {
        "model": options.model,
        # In bfloat16 what else is in a batch changes roundings, and with them near-ties.
        "dtype": "float32",
        "snic_bandwidth": options.snic,
        # All agents may read at once, from NICs that are slow on purpose.
        "read_deadline_s": PATIENCE_S,
        "transfer_deadline_s": PATIENCE_S,
        # Text is longer or shorter in tokens than the trace says.
        "max_context": min(2 * longest(trace.trajectories) + 64, 8192),
    }
    cells = [
        Cell(
            system=system,
            prefill=1,
            decode=1,
            settings=settings,
            trace=trace,
            load=ClosedLoop(options.agents),
            stored=True,
            target={"prompts": "text", "extra": {"temperature": 0, "return_token_ids": True}},
        )
        for system in (PE_ONLY, DUALPATH)
    ]
    return Plan(
        kind="real",
        title=f"A real model: {options.model}",
        question="Does the second read path pay with real text and a real model, and are the answers the same?",
        cells=cells,
        profile=None,
        workload={
            "model": f"{options.model} in float32",
            "agents": options.agents,
            "turns of an agent": 1 + options.turns,
            "SNIC of each node": options.snic,
            "trace": f"32K of the paper's table 2 at 1/16 of its lengths, seed {options.seed}, as text",
        },
        repetitions=options.repetitions,
        claims=_claims,
        notes=(
            "Each agent's context is on storage already; each of its turns reads it, and computes what it appends. "
            "The engines compute on the CPU, so there is no gate for that, and no bound: the gate is that storage "
            "NICs were busy.",
        ),
        models=load_settings(model=options.model).home / "models",
    )


def _claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    found = list(speedups(runs))
    ttft = {
        system: [run.latencies["ttft"].p(50) for run in runs if run.system == system]
        for system in (PE_ONLY.name, DUALPATH.name)
    }
    if all(ttft.values()):
        before, after = (median(times) for times in ttft.values())
        said = f"{before:.2f} s pe-only, {after:.2f} s dualpath: {before / after:.2f} ×"
        found.append(Claim("TTFT, median", "not published", said))
    first = runs[0].answers if runs else {}
    for run in runs[1:]:
        same = sum(run.answers.get(place) == digest for place, digest in first.items())
        found.append(
            Claim(
                f"answers of {run.system} #{run.repetition + 1} that are those of {runs[0].system} #1",
                "not published; wanted: all",
                f"{same} of {len(first)}",
                same == len(first) > 0,
            )
        )
    return tuple(found)
