"""What is shown while an experiment runs: which run, how far, at what rate, until when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dualpath.loadgen.replay import Progress as Replayed
from dualpath.loadgen.report.results import Run


class Live:
    """A bar for all runs and one for the run at hand, on a terminal; a line per run anywhere."""

    def __init__(self, console: Console, runs: int) -> None:
        self.console = console
        self._runs = runs
        self._done = 0
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._all: TaskID | None = None
        self._one: TaskID | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            self._progress = progress
            self._all = progress.add_task("runs", total=self._runs, said="")
            self._one = progress.add_task("", total=1, said="", visible=False)
            try:
                yield
            finally:
                self._progress = None

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begins(self, what: str, turns: int) -> None:
        """A run of `turns` answers; its cluster starts now."""
        if self._progress is not None and self._one is not None:
            self._progress.reset(
                self._one, description=what, total=turns, said="starting", visible=True
            )

    def omitted(self, text: str) -> None:
        """A run fewer."""
        self._runs -= 1
        self.say(text)

    def more(self) -> None:
        """A run more."""
        self._runs += 1

    def progressed(self, progress: Replayed) -> None:
        """What `replay` says once a second."""
        if self._progress is None or self._one is None:
            return
        eta = f", about {progress.eta_s:.0f} s left" if progress.eta_s is not None else ""
        rate = progress.turns / progress.seconds if progress.seconds else 0.0
        ttft = f", TTFT {progress.ttft_s * 1e3:.0f} ms" if progress.ttft_s is not None else ""
        self._progress.update(
            self._one, completed=progress.turns, said=f"{rate:.1f} turns/s{ttft}{eta}"
        )

    def ended(self, run: Run) -> None:
        self._done += 1
        took = time.monotonic() - self._began
        left = took / self._done * max(self._runs - self._done, 0)
        if self._progress is not None and self._all is not None:
            self._progress.update(self._all, completed=self._done, said=f"about {left:.0f} s left")
        self.say(f"[{self._done}/{self._runs}, {took:.0f} s] {line(run)}")
        for gate in run.gates:
            if not gate.ok:
                self.say(f"    invalid: {gate.name}: {gate.said}")


def line(run: Run) -> str:
    """A run in a line."""
    at = "" if run.x is None else f" at {run.x:g}"
    ttft = run.latencies["ttft"]
    tpot = run.latencies["tpot"]
    figures = [
        f"JCT {run.jct_s:.1f} s",
        *([f"bound {run.bound_s:.1f} s"] if run.bounds_s else []),
        f"TTFT {ttft.mean * 1e3:.0f} ms",
        f"TPOT {tpot.mean * 1e3:.0f} ms",
        *(
            [f"SNICs {run.busy['prefill']:.0%} / {run.busy['decode']:.0%}"]
            if {"prefill", "decode"} <= run.busy.keys()
            else []
        ),
        f"CPU {run.cpu:.0%}",
    ]
    return f"{run.shape} {run.system}{at}: " + ", ".join(figures)
