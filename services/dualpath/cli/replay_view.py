"""What `dualpath replay` shows: progress while it runs, and figures at its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dualpath.cli.tables import new_table
from dualpath.loadgen.replay import Latencies, Progress, ReplayResult, Step
from dualpath.loadgen.summary import Summary

_LINE_EVERY_S = 10.0


class ProgressView:
    """On a terminal a line that changes; elsewhere a new one now and then. On standard error. A context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._printed_s = 0.0
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        line = progress_line(progress)
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif progress.seconds - self._printed_s >= _LINE_EVERY_S:
            self._printed_s = progress.seconds
            self._console.print(line, soft_wrap=True, markup=False)


def progress_line(progress: Progress) -> str:
    seconds = progress.seconds or 1.0
    parts = [
        clock(progress.seconds),
        f"agents {progress.agents_ended}/{_all(progress.agents_all)} ({progress.agents_started} started)",
        f"turns {progress.turns}/{_all(progress.turns_all)}, {progress.turns / seconds:.1f}/s",
        f"{progress.in_flight} in flight",
        f"{progress.generated_tokens / seconds:.0f} tokens/s",
    ]
    if progress.ttft_s is not None:
        parts.append(f"TTFT {progress.ttft_s:.3g} s")
    if progress.errors:
        parts.append(f"{progress.errors} failed")
    if progress.retries:
        parts.append(f"{progress.retries} sent again")
    parts.append(f"client lag {progress.lag_s * 1e3:.1f} ms")
    if progress.eta_s is not None:
        parts.append(f"ETA {clock(progress.eta_s)}")
    return " · ".join(parts)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _all(count: int | None) -> str:
    return "?" if count is None else str(count)


def print_result(result: ReplayResult, console: Console) -> None:
    answered = sum(turn.ok for turn in result.turns)
    rates = result.rates()
    console.print(
        f"{result.ended} after {result.duration_s:.2f} s; {result.model}, prompts as {result.prompts}: "
        f"{sum(agent.ok for agent in result.agents)} of {len(result.agents)} agents, "
        f"{answered} of {len(result.turns)} turns",
        markup=False,
    )
    console.print(f"JCT {result.jct_s:.3f} s")
    console.print(latency_table("Seconds", result.latencies()))
    if result.window_s[0] > 0:
        low, high = result.window_s
        console.print(
            latency_table(f"Seconds, from {low:.0f} to {high:.0f} s", result.latencies(steady=True))
        )
    prompt = sum(turn.prompt_tokens for turn in result.turns if turn.ok)
    cached = sum(turn.cached_tokens for turn in result.turns if turn.ok)
    console.print(
        f"per second: {rates['turns']:.2f} turns, {rates['agents']:.3g} agents, "
        f"{rates['prompt_tokens']:,.0f} prompt tokens, {rates['generated_tokens']:,.0f} generated; "
        f"hits {cached / prompt * 100 if prompt else 0:.1f} % of {prompt:,} prompt tokens",
        soft_wrap=True,
    )
    lag = result.lag
    console.print(
        f"client: event loop late by {lag.loop_s.p(99) * 1e3:.2f} ms, sending by "
        f"{lag.send_s.p(99) * 1e3:.2f} ms (99th percentiles), {lag.cpu:.2f} cores",
        soft_wrap=True,
    )
    for warning in result.warnings:
        console.print(f"! {warning}", markup=False, soft_wrap=True)


def latency_table(title: str, found: Latencies) -> object:
    table = new_table(title, "", "count", "mean", "p50", "p90", "p99", "max", numbers=6)
    for name, summary in (
        ("TTFT", found.ttft_s),
        ("TTST", found.ttst_s),
        ("TPOT", found.tpot_s),
        ("turn, end to end", found.e2e_s),
        ("agent, end to end", found.agent_s),
    ):
        table.add_row(name, str(summary.count), *_figures(summary))
    return table


def _figures(summary: Summary) -> list[str]:
    if not summary.count:
        return ["–"] * 5
    figures = (summary.mean, summary.p(50), summary.p(90), summary.p(99), summary.max)
    return [f"{figure:.4f}" for figure in figures]


def print_step(step: Step, console: Console) -> None:
    found = step.result.latencies(steady=True)
    said = "met" if step.met else "; ".join(step.misses)
    console.print(
        f"{step.aps:.4g} agents/s: {step.result.ended} after {step.result.duration_s:.0f} s, TTFT "
        f"{found.ttft_s.mean:.3f} s, TTST {found.ttst_s.mean:.3f} s, TPOT {found.tpot_s.mean:.4f} s: {said}",
        markup=False,
        soft_wrap=True,
    )
    if not step.result.lag.valid:
        console.print("! the client was late: this rate's figures are its own", markup=False)
