"""The `dualpath bench` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    """Do short bursts on the high lane feel KV traffic that saturates the low one?

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
