"""The `dualpath trace` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.options import AsJson

trace = typer.Typer(no_args_is_help=True, help="Make, describe and convert traces of agents.")

Seed = Annotated[int, typer.Option(metavar="N", min=0, help="The same seed, the same trace.")]
Lengths = Annotated[float, typer.Option(metavar="X", help="Scales the contexts' lengths.")]
Turns = Annotated[float, typer.Option(metavar="X", help="Scales the number of turns.")]


@trace.command("make")
def trace_make(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="What to write.")],
    max_len: Annotated[
        str, typer.Option(metavar="LEN", help="Of the paper's Table 2: 32K, 48K or 64K.")
    ] = "64K",
    trajectories: Annotated[int, typer.Option(metavar="N", min=1, help="How many.")] = 500,
    seed: Seed = 0,
    lengths: Lengths = 1.0,
    turns: Turns = 1.0,
) -> None:
    """Make trajectories with the statistics of the paper's Table 2.

    \b
    dualpath trace make --max-len 32K -o 32k.jsonl && dualpath trace stat 32k.jsonl
    dualpath trace make --lengths 0.05 --turns 0.1 --trajectories 16 -o small.jsonl
    """
    from dualpath.cli.trace import make

    raise typer.Exit(make(output, max_len, trajectories, seed, lengths, turns))


@trace.command("stat")
def trace_stat(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace of any known format.")],
    as_json: AsJson = False,
) -> None:
    """Describe a trace: lengths, turns, an ideal cache's hit rate.

    A made one is put beside the paper's Table 2. Known formats: `dualpath trace make`'s, Mooncake's (timestamp,
    input_length, output_length, hash_ids), and recorded conversations (messages, tools, delays_s; docs/loadgen.md).
    """
    from dualpath.cli.trace import stat

    raise typer.Exit(stat(file, as_json=as_json))


@trace.command("convert")
def trace_convert(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A trace of any known format.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="What to write.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="native or mooncake.")] = "native",
    first: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N trajectories.")
    ] = None,
    append: Annotated[float, typer.Option(metavar="X", help="Scales appended tokens.")] = 1.0,
    generate: Annotated[float, typer.Option(metavar="X", help="Scales generated tokens.")] = 1.0,
    turns: Annotated[
        float, typer.Option(metavar="X", help="Keeps this share of each one's turns.")
    ] = 1.0,
    time: Annotated[
        float, typer.Option(metavar="X", help="Scales arrivals and delays: 0.5 is twice as fast.")
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Ends trajectories at this context.")
    ] = None,
    answer_s: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="To mooncake: from a turn to the next, beside delays."
        ),
    ] = 0.0,
) -> None:
    """Write a trace in another format, scaled, or shortened.

    \b
    dualpath trace convert conversation.jsonl fast.jsonl --time 0.1 --append 0.125 --max-tokens 8000
    dualpath trace convert 64k.jsonl 64k-mooncake.jsonl --to mooncake --answer-s 10
    """
    from dualpath.cli.trace import Change, convert

    change = Change(first, append, generate, turns, time, max_tokens)
    raise typer.Exit(convert(source, output, to, change, answer_s))
