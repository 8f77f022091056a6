"""Two experiments side by side: what changed, and whether by more than runs differ anyway. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from dualpath.loadgen.report.page import document, table
from dualpath.loadgen.report.results import Experiment, Run

_FIGURES = ("jct_s", "ttft_s", "ttft_p99_s", "ttst_s", "tpot_s", "busy", "balance")


@dataclass(frozen=True)
class Change:
    """Of one figure of one system: medians before and after. `spread`: how much single runs of one side differ at
    most, as a ratio; a change within it says nothing. `valid`: all gates held on both sides."""

    where: str
    figure: str
    before: float
    after: float
    spread: float
    valid: bool

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else 0.0

    @property
    def beyond_spread(self) -> bool:
        return bool(self.ratio) and max(self.ratio, 1 / self.ratio) > self.spread


def changes(before: Experiment, after: Experiment) -> list[Change]:
    """Of what both have, by shape, system and place on the axis."""
    found = []
    ours, theirs = _by_place(before), _by_place(after)
    for place, runs in ours.items():
        if place not in theirs:
            continue
        others = theirs[place]
        valid = all(run.valid for run in [*runs, *others])
        for name in _FIGURES:
            old, new = [_figure(r, name) for r in runs], [_figure(r, name) for r in others]
            if median(old) and median(new):
                spread = max(_spread(old), _spread(new))
                found.append(Change(place, name, median(old), median(new), spread, valid))
    return found


def differing_settings(before: Experiment, after: Experiment) -> list[tuple[str, str, str, str]]:
    """(where, setting, before, after) of what differs."""
    found = []
    ours, theirs = _by_place(before), _by_place(after)
    for place, runs in ours.items():
        if place in theirs:
            old, new = runs[0].settings, theirs[place][0].settings
            for name in sorted({*old, *new}):
                if old.get(name) != new.get(name):
                    found.append((place, name, str(old.get(name)), str(new.get(name))))
    for name in sorted({*before.workload, *after.workload}):
        if before.workload.get(name) != after.workload.get(name):
            found.append(
                ("workload", name, str(before.workload.get(name)), str(after.workload.get(name)))
            )
    return found


def text(before: Experiment, after: Experiment) -> list[str]:
    """For a terminal."""
    rows = changes(before, after)
    if not rows:
        return ["the two have nothing in common: no run of the same shape, system and place"]
    width = max(len(row.where) for row in rows)
    lines = [f"{'':{width}}  {'figure':11} {'before':>10} {'after':>10}  ratio"]
    lines += [
        f"{row.where:{width}}  {row.figure:11} {row.before:10.4g} {row.after:10.4g}  {row.ratio:5.2f}"
        f"{'' if row.beyond_spread else '  within the spread of runs'}{'' if row.valid else '  (invalid runs)'}"
        for row in rows
    ]
    lines += [
        f"{where}: {name} was {old}, is {new}"
        for where, name, old, new in differing_settings(before, after)
    ]
    return lines


def comparison_page(before: Experiment, after: Experiment) -> str:
    """The same as a page."""
    rows = [
        (
            escape(row.where),
            row.figure,
            f"{row.before:.4g}",
            f"{row.after:.4g}",
            f"{row.ratio:.2f}",
            "" if row.beyond_spread else "within the spread of runs",
            "" if row.valid else '<span class="bad">invalid runs</span>',
        )
        for row in changes(before, after)
    ]
    differing = [tuple(map(escape, row)) for row in differing_settings(before, after)]
    body = [
        f"<h1>{escape(after.title)}: before and after</h1>",
        f'<p class="dim">before: {escape(before.began)}, <code>{escape(before.command)}</code><br>'
        f"after: {escape(after.began)}, <code>{escape(after.command)}</code></p>",
        table(("", "figure", "before", "after", "ratio", "", ""), rows, figures=(2, 3, 4)),
        "<h2>What differs in what was run</h2>",
        table(("where", "setting", "before", "after"), differing)
        if differing
        else "<p>Nothing.</p>",
    ]
    return document(f"{after.title}: before and after", "\n".join(body))


def _by_place(experiment: Experiment) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in experiment.runs:
        place = "" if run.x is None else f" at {run.x:g}"
        found.setdefault(f"{run.shape} {run.system}{place}", []).append(run)
    return found


def _figure(run: Run, name: str) -> float:
    ttft = run.latencies["ttft"]
    named = {
        "jct_s": run.jct_s,
        "ttft_s": ttft.mean,
        "ttft_p99_s": ttft.p(99),
        "ttst_s": run.latencies["ttst"].mean,
        "tpot_s": run.latencies["tpot"].mean,
        "busy": run.busy.get("all", 0.0),
        "balance": run.balance,
    }
    return named[name]


def _spread(figures: Sequence[float]) -> float:
    return max(figures) / min(figures) if min(figures) > 0 else 1.0
