"""The report as one HTML file that needs nothing else: no script, no network; light and dark, desktop and phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dualpath.loadgen.report.figures import Section, sections
from dualpath.loadgen.report.results import Experiment, Run
from dualpath.loadgen.report.svg import PAGE, number

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2430; --dim: #5b6675; --line: #dde2e8;
  --card: #f6f8fa; --mark: #b3261e; --good: #0f7a4f; --bad: #b3261e;
  --s0: #2563c4; --s1: #d97706; --s2: #0f8a5f; --s3: #7c4dbe; --s4: #c2316b; --s5: #0e7f96; --s6: #7a8088; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --ink: #e3e8ee; --dim: #9aa5b3; --line: #2c3440;
  --card: #1a2028; --mark: #ff7a70; --good: #4cc38a; --bad: #ff7a70;
  --s0: #6ea3f5; --s1: #f0a04b; --s2: #4cc38a; --s3: #b08bf0; --s4: #f07ba5; --s5: #55c2d6; --s6: #a3abb5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1320px; padding: 16px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.1rem; margin: 32px 0 2px; }
p { margin: 4px 0 10px; max-width: 75ch; }
.dim { color: var(--dim); }
.sections { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 0 28px; }
.sections > .many { grid-column: 1 / -1; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px; background: var(--card); border-radius: 8px; --paper: var(--card); }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: 6px; }
svg { width: 100%; max-width: 470px; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px 3px 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
.verdict { padding: 10px 14px; border-radius: 8px; background: var(--card); border-left: 4px solid var(--good);
  margin: 12px 0; }
.verdict.no { border-color: var(--bad); }
code { font-size: .85em; overflow-wrap: anywhere; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--dim); }
"""


def page(experiment: Experiment) -> str:
    """The whole document."""
    parts = [
        f"<h1>{escape(experiment.title)}</h1>",
        f"<p>{escape(experiment.question)}</p>",
        f'<p class="dim">{escape(_when(experiment))}</p>',
        _verdict(experiment),
        _claims(experiment),
        _capacity(experiment),
        _charts(sections(experiment, PAGE)),
        _runs(experiment.runs),
        _gates(experiment.runs),
        _notes(experiment),
        _about(experiment),
    ]
    return document(experiment.title, "\n".join(part for part in parts if part))


def document(title: str, body: str) -> str:
    """A page of this style."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # No icon, or browsers ask for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def write_page(experiment: Experiment, path: Path) -> None:
    """Raises OSError."""
    path.write_text(page(experiment), "utf-8")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, figures: Sequence[int] = ()
) -> str:
    """`rows` hold HTML; columns in `figures` are set to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="n">{cell}</{tag}>' if k in figures else f"<{tag}>{cell}</{tag}>"
            for k, cell in enumerate(row)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", [escape(head) for head in heads])}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def section_html(section: Section) -> str:
    """A heading, how to read it, and its charts."""
    figures = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{chart.svg(PAGE)}</figure>"
        for chart in section.charts
    )
    kind = ' class="many"' if len(section.charts) > 1 else ""
    return (
        f"<section{kind}><h2>{escape(section.heading)}</h2>"
        f'<p class="dim">{escape(section.said)}</p><div class="charts">{figures}</div></section>'
    )


def _charts(found: Iterable[Section]) -> str:
    """Those of one chart side by side where there is room."""
    inner = "".join(map(section_html, found))
    return f'<div class="sections">{inner}</div>' if inner else ""


def _when(experiment: Experiment) -> str:
    machine = experiment.machine
    gib = machine.get("memory_bytes", 0) / 2**30
    return (
        f"{experiment.began}, {experiment.duration_s / 60:.1f} minutes on {machine.get('cores')} cores, {gib:.0f} GiB"
        f"; load of the machine before it began: {machine.get('load_average', 0.0):.1f}"
    )


def _verdict(experiment: Experiment) -> str:
    bad = [run for run in experiment.runs if not run.valid]
    if experiment.interrupted:
        text = "Interrupted: not all runs are here."
    elif bad:
        names = dict.fromkeys(gate.name for run in bad for gate in run.gates if not gate.ok)
        text = (
            f"{len(bad)} of {len(experiment.runs)} runs are invalid, as a gate did not hold: {', '.join(names)}. "
            "Their figures are of something else than they say; the table of gates tells of what."
        )
    else:
        text = f"All gates held in all {len(experiment.runs)} runs."
    kind = "verdict no" if bad or experiment.interrupted else "verdict"
    return f'<div class="{kind}">{escape(text)}</div>'


def _claims(experiment: Experiment) -> str:
    if not experiment.claims:
        return ""
    rows = []
    for claim in experiment.claims:
        sign = {None: "", True: '<span class="good">✓</span>', False: '<span class="bad">✗</span>'}
        rows.append(
            (escape(claim.what), escape(claim.published), escape(claim.measured), sign[claim.good])
        )
    return "<h2>Beside what was published</h2>" + table(("", "published", "here", ""), rows)


def _capacity(experiment: Experiment) -> str:
    if not experiment.capacity:
        return ""
    first = next(iter(experiment.capacity.values()))
    rows = [
        (escape(system), number(rate), f"{rate / first:.2f} ×" if first else "")
        for system, rate in experiment.capacity.items()
    ]
    limits = " and ".join(
        f"a mean {name.removesuffix('_s').upper()} of {number(value)} s"
        for name, value in experiment.slo.items()
    )
    return (
        f'<h2>Capacity</h2><p class="dim">The highest rate within {escape(limits)} (emulated).</p>'
        + table(("system", escape(experiment.axis), ""), rows, figures=(1, 2))
    )


def _runs(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        ttft, tpot = run.latencies["ttft"], run.latencies["tpot"]
        bound = f"{run.jct_s / run.bound_s:.2f} ×" if run.bound_s else ""
        rows.append(
            (
                escape(run.shape),
                escape(run.system),
                "" if run.x is None else number(run.x),
                str(run.repetition + 1),
                f"{run.jct_s:.2f}",
                bound,
                f"{ttft.mean:.3f}",
                f"{ttft.p(99):.3f}",
                f"{run.latencies['ttst'].mean * 1e3:.0f}",
                f"{tpot.mean * 1e3:.0f}",
                f"{run.busy.get('prefill', 0):.0%} / {run.busy.get('decode', 0):.0%}",
                f"{run.cpu:.0%}",
                '<span class="good">valid</span>'
                if run.valid
                else '<span class="bad">invalid</span>',
            )
        )
    heads = (
        "shape", "system", "at", "run", "JCT s", "÷ bound", "TTFT s", "p99 s", "TTST ms", "TPOT ms",
        "SNICs P / D", "CPU", "",
    )  # fmt: skip
    return "<h2>All runs</h2>" + table(heads, rows, figures=range(2, 12))


def _gates(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(gate.name for run in runs for gate in run.gates))
    rows = []
    for run in runs:
        said = {gate.name: gate for gate in run.gates}
        place = "" if run.x is None else f" at {run.x:g}"
        cells = [f"{escape(run.shape)} {escape(run.system)}{place} #{run.repetition + 1}"]
        for name in names:
            gate = said.get(name)
            if gate is None:
                cells.append("")
            else:
                sign = '<span class="good">✓</span>' if gate.ok else '<span class="bad">✗</span>'
                cells.append(f"{sign} {escape(gate.said)}")
        rows.append(cells)
    return (
        "<h2>Gates</h2><p class='dim'>What must hold for a figure to be of what it says.</p>"
        "<details><summary>each run's gates</summary>" + table(["run", *names], rows) + "</details>"
    )


def _notes(experiment: Experiment) -> str:
    if not experiment.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in experiment.notes)
    return f"<h2>How to read it</h2><ul>{items}</ul>"


def _about(experiment: Experiment) -> str:
    profile = dict(experiment.profile)
    figures = profile.pop("figures", [])
    out = [
        "<h2>What was run</h2>",
        f"<p><code>{escape(experiment.command)}</code></p>",
        _details("workload", _pairs(experiment.workload)),
        _details("machine and versions", _pairs(experiment.machine)),
    ]
    if figures:
        rows = [
            (escape(str(name)), f"{value:.4g}", escape(str(source)))
            for name, value, source in figures
        ]
        out.append(
            _details(
                "hardware profile and its sources",
                _pairs(profile) + table(("figure", "value", "source"), rows, figures=(1,)),
            )
        )
    by_system = {f"{run.shape} {run.system}": run.settings for run in experiment.runs}
    for name, settings in by_system.items():
        out.append(_details(f"settings of {name}", _pairs(settings)))
    return "".join(out)


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _pairs(values: dict[str, Any]) -> str:
    return table(
        ("", ""),
        [
            (escape(str(name)), f"<code>{escape(str(value))}</code>")
            for name, value in values.items()
        ],
    )
