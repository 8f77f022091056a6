"""The `dualpath bench` commands and their options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

bench = typer.Typer(
    no_args_is_help=True, help="Measure this machine, with a reference in the same run."
)


@bench.command("isolation")
def bench_isolation(
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="Of the emulated CNICs: 100MB/s, 1Gbps.")
    ] = "200MB/s",
    quantum: Annotated[
        str, typer.Option(metavar="SIZE", help="What a NIC sends per decision.")
    ] = "64KiB",
    piece: Annotated[
        str, typer.Option(metavar="SIZE", help="What a burst sends to each other engine.")
    ] = "128KiB",
    engines: Annotated[
        int, typer.Option(metavar="N", min=2, max=16, help="Engines, each a process.")
    ] = 2,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Of each case, in turns.")] = 5,
    bursts: Annotated[int, typer.Option(metavar="N", min=1, help="In a round of a case.")] = 400,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the distributions, as SVG.")
    ] = None,
) -> None:
    """Do bursts on the high lane feel KV traffic on the low one?

    Engines exchange AllToAll bursts of less than a millisecond over emulated CNICs, while each writes to each as
    much as goes on the low lane. Three cases in turns: `baseline`, the same low traffic through another CNIC, so
    that only the CPU is shared; `lanes on`; and `lanes off`, all in one queue. Takes about a minute and more than
    one core; no cluster is needed. Where low traffic stays below the bandwidth the CPU is the limit: choose a
    lower bandwidth, or go before the machine's other work as the last example does.

    \b
    dualpath bench isolation
    dualpath bench isolation --plot isolation.svg
    dualpath bench isolation --bandwidth 100MB/s --quantum 32KiB --piece 64KiB
    sudo chrt --fifo 10 dualpath bench isolation
    """
    from dualpath.cli.bench.isolation import isolation

    raise typer.Exit(isolation(bandwidth, quantum, piece, engines, rounds, bursts, plot))


# ── experiments on clusters ────────────────────────────────────────────────────────────────────────
Profile = Annotated[
    str,
    typer.Option(metavar="NAME", help="hopper-ds660b, hopper-ds27b, hopper-qwen32b or laptop."),
]
TraceName = Annotated[
    str, typer.Option("--trace", metavar="NAME", help="Agents like Table 2's: 32K, 48K or 64K.")
]
Agents = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=4096, help="Emulated ones; each stands for many."),
]
Turns = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=1000, help="Of each agent, after the one that reads its context."
    ),
]
Repetitions = Annotated[
    int, typer.Option("--repetitions", metavar="N", min=1, max=100, help="Of all runs, in turns.")
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of trace and arrivals.")]
Systems = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Of basic, pe-only, dualpath and oracle, with commas."),
]
Shapes = Annotated[
    str | None, typer.Option(metavar="SHAPES", help="1P1D,2P1D: prefill and decode nodes.")
]
Values = Annotated[
    str | None, typer.Option("--values", metavar="NUMBERS", help="Places on the axis, with commas.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="PATH", help="PATH.json, .html and .png; default: by name and time."
    ),
]


def _carry_out(kind: str, given: Mapping[str, Any]) -> None:
    from dualpath.cli.bench.start import start

    raise typer.Exit(start(kind, given))


@bench.command("offline")
def bench_offline(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 2,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    out: Out = None,
) -> None:
    """How long until all agents have ended, by system and shape?

    Starts a cluster for each of 1P1D, 2P1D, 1P2D and each of basic, pe-only, dualpath, oracle, one at a time, with
    emulated engines and NICs of the profile's proportions; checks every answer; writes JSON, a page and a picture.
    Takes about 10 minutes on two cores, with nothing else running: a run in which the CPU was the limit is invalid.

    Exit code 0: all gates held; 4: measured, but not all did; 1: a cluster failed; 130: interrupted.

    \b
    dualpath bench offline
    dualpath bench offline --profile laptop --shapes 1P1D --repetitions 1
    """
    _carry_out("offline", locals())


@bench.command("ratio")
def bench_ratio(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    out: Out = None,
) -> None:
    """What does the second read path give at each P/D ratio?

    About 7 minutes.
    """
    _carry_out("ratio", locals())


@bench.command("append")
def bench_append(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 2,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    values: Values = None,
    out: Out = None,
) -> None:
    """How much is gained as turns append more?

    Computing takes over from reading then. About 7 minutes.
    """
    _carry_out("append", locals())


@bench.command("generate")
def bench_generate(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 2,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    values: Values = None,
    out: Out = None,
) -> None:
    """How much is gained as answers get longer?

    Decoding takes over from reading then. About 8 minutes.
    """
    _carry_out("generate", locals())


@bench.command("ablation")
def bench_ablation(
    profile: Profile = "hopper-ds660b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    shapes: Shapes = None,
    values: Values = None,
    out: Out = None,
) -> None:
    """What does each technique add?

    basic, + layerwise, + dual path, + scheduling, + split, on 2P4D, with the memory of prefill engines at 50, 100 and
    150 %. About 8 minutes.
    """
    _carry_out("ablation", locals())


@bench.command("balance")
def bench_balance(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 2,
    seed: Seed = 0,
    shapes: Shapes = None,
    out: Out = None,
) -> None:
    """Do all nodes' storage NICs read alike?

    Round robin, adaptive, split. About 3 minutes.
    """
    _carry_out("balance", locals())


@bench.command("online")
def bench_online(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    turns: Turns = 2,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    values: Values = None,
    out: Out = None,
) -> None:
    """How many agents per second are served within the SLO?

    That is TTFT ≤ 4 s and TPOT ≤ 50 ms, in the profile's seconds. Agents arrive as a Poisson process; --values are
    multiples of the rate that fills the prefill nodes' SNICs. A system that broke the limits at one rate is not asked
    for higher ones; between the last rate that it served and the first that it did not, it is asked for middles until
    those are within 10 %. Runs whose gates did not hold are measured once more, and do not count. About 10 minutes.
    """
    _carry_out("online", locals())


@bench.command("rollout")
def bench_rollout(
    profile: Profile = "hopper-ds27b",
    trace: TraceName = "64K",
    agents: Agents = None,
    samples: Annotated[int, typer.Option(metavar="N", min=1, max=256, help="Of each prompt.")] = 4,
    turns: Turns = 2,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    systems: Systems = None,
    shapes: Shapes = None,
    out: Out = None,
) -> None:
    """How long do many samples of each long prompt take?

    As in reinforcement learning. About 3 minutes.
    """
    _carry_out("rollout", locals())


@bench.command("real")
def bench_real(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="smollm2, tiny, or a checkpoint directory.")
    ] = "smollm2",
    snic: Annotated[
        str, typer.Option(metavar="RATE", help="Emulated storage NIC of each node.")
    ] = "10MB/s",
    agents: Annotated[int, typer.Option(metavar="N", min=1, max=256)] = 8,
    turns: Turns = 2,
    repetitions: Repetitions = 1,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """How do pe-only and dualpath do with a real model and real text?

    JCT, TTFT, and whether the answers are the same. Contexts are stored beforehand. Storage NICs are emulated, slow
    enough that reading contexts takes several times as long as computing what turns append: they are the bottleneck,
    and a gate says whether they were. About 4 minutes on two cores.
    """
    _carry_out("real", locals())
