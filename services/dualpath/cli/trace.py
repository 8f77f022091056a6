"""`dualpath trace`: traces made, described, converted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from dualpath.cli.tables import new_table
from dualpath.cli.words import WRONG_USE, complain
from dualpath.loadgen.summary import Summary
from dualpath.loadgen.traces import (
    TableRow,
    Trace,
    TraceError,
    TraceStats,
    describe,
    load_trace,
    make_trace,
    row_of,
    save_trace,
)
from dualpath.loadgen.traces.mooncake import mooncake_lines
from dualpath.loadgen.traces.native import save_lines

FORMATS = ("native", "mooncake")


def make(
    output: Path, max_len: str, trajectories: int, seed: int, lengths: float, turns: float
) -> int:
    """Exit code: 0, 1 where the file cannot be written, 2 for wrong use."""
    try:
        made = make_trace(
            max_len, trajectories=trajectories, seed=seed, lengths=lengths, turns=turns
        )
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    return _write(output, made)


def stat(file: Path, *, as_json: bool) -> int:
    """Exit code: 0, 1 where the file cannot be read."""
    try:
        trace = load_trace(file)
    except TraceError as error:
        complain(str(error))
        return 1
    stats, row = describe(trace), row_of(trace)
    if as_json:
        found = {
            "name": trace.name,
            "source": trace.source,
            **stats.as_dict(),
            "table_2": None if row is None else asdict(row),
        }
        print(msgspec.json.encode(found).decode())
        return 0
    print_stats(trace, stats, Console(highlight=False))
    return 0


def print_stats(trace: Trace, stats: TraceStats, console: Console) -> None:
    row = row_of(trace)
    console.print(f"{trace.name} ({trace.source})", soft_wrap=True, markup=False)
    console.print(f"{stats.trajectories} trajectories, {stats.requests} requests")
    if stats.span_s is not None:
        rate = stats.trajectories / stats.span_s if stats.span_s else 0.0
        console.print(f"arrivals over {stats.span_s:,.1f} s, {rate:.3g} per second")
    if stats.requests > stats.trajectories:
        console.print(_trajectories(stats, row))
    table = new_table(
        "Of each request, in tokens", "", "mean", "p10", "p50", "p90", "max", numbers=5
    )
    table.add_row("appended", *_cells(stats.request_append))
    table.add_row("generated", *_cells(stats.request_generate))
    table.add_row("prompt", *_cells(stats.request_context))
    console.print(table)
    console.print(f"ideal hit rate: {stats.ideal_hit_rate * 100:.2f} % of all prompts' tokens")
    if stats.ideal_block_hit_rate is not None:
        console.print(
            f"of hash-id blocks of {trace.block_tokens} tokens: {stats.ideal_block_hit_rate * 100:.2f} %"
        )


def _trajectories(stats: TraceStats, row: TableRow | None) -> Table:
    columns = ["mean", "p10", "p50", "p90", "max"]
    if row is not None:
        columns[1:1] = ["Table 2", "off"]
    title = "Of each trajectory (of append, generated and context its mean), in tokens"
    table = new_table(title, "", *columns, numbers=len(columns))
    named = {
        "turns": stats.turns,
        "append": stats.append,
        "generate": stats.generate,
        "total": stats.total,
        "context": stats.context,
    }
    for name, summary in named.items():
        cells = _cells(summary)
        if row is not None:
            wanted = float(getattr(row, name))
            cells[1:1] = [_figure(wanted), f"{(summary.mean / wanted - 1) * 100:+.2f} %"]
        table.add_row("generated" if name == "generate" else name, *cells)
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _cells(summary: Summary) -> list[str]:
    figures = [summary.mean, summary.p(10), summary.p(50), summary.p(90), summary.max]
    return [_figure(figure) for figure in figures]


@dataclass(frozen=True)
class Change:
    """What `convert` does to a trace besides writing it."""

    first: int | None = None
    append: float = 1.0
    generate: float = 1.0
    turns: float = 1.0
    time: float = 1.0
    max_tokens: int | None = None

    def of(self, trace: Trace) -> Trace:
        """Raises ValueError."""
        if self.first is not None:
            trace = replace(trace, trajectories=trace.trajectories[: self.first])
        return trace.scaled(
            append=self.append,
            generate=self.generate,
            turns=self.turns,
            time=self.time,
            max_tokens=self.max_tokens,
        )


def convert(source: Path, output: Path, to: str, change: Change, answer_s: float) -> int:
    """Exit code: 0, 1 where a file cannot be read or written, 2 for wrong use."""
    if to not in FORMATS:
        complain(f"--to is {' or '.join(FORMATS)}, not {to}")
        return WRONG_USE
    try:
        trace = load_trace(source)
    except TraceError as error:
        complain(str(error))
        return 1
    try:
        changed = change.of(trace)
        if len(changed) < len(trace) and change.first is None:
            complain(f"{len(trace) - len(changed)} trajectories are left out: none of it fits")
        if to == "native":
            return _write(output, changed)
        return _write(output, changed, mooncake=True, answer_s=answer_s)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE


def _write(output: Path, trace: Trace, *, mooncake: bool = False, answer_s: float = 0.0) -> int:
    try:
        if mooncake:
            save_lines(mooncake_lines(trace, answer_s=answer_s), output)
        else:
            save_trace(trace, output)
    except OSError as error:
        complain(f"{output} cannot be written ({error.strerror}); name another file")
        return 1
    print(f"{output}: {len(trace)} trajectories, {trace.turns} turns")
    return 0
