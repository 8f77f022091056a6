"""Which charts an experiment has: each answers one question of an engineer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, median

from dualpath.loadgen.report.results import Experiment, NicSeries, Run, storage_nics
from dualpath.loadgen.report.svg import Bar, Chart, Line, Palette, Stack, bars, lines, stacks

MAX_TIMELINES = 12
_BOUND = (
    " The red line is the bound that no scheduling can beat: the most of reading at the SNICs' full rate, computing, "
    "and decoding in turn."
)


@dataclass(frozen=True)
class Section:
    """Charts under a heading, with a sentence on how to read them."""

    heading: str
    said: str
    charts: tuple[Chart, ...]


def sections(experiment: Experiment, palette: Palette) -> list[Section]:
    """Those for which there are figures."""
    made: Iterable[Section] = (
        make(experiment, palette)
        for make in (
            _over_axis if experiment.axis else _completion,
            _ttft_parts,
            _hits,
            _nic_use,
            _balance,
            _lanes,
        )
    )
    return [section for section in made if section.charts]


def _color(experiment: Experiment, system: str) -> int:
    return experiment.systems().index(system)


def _groups(experiment: Experiment) -> list[tuple[str, str, float | None, list[Run]]]:
    """(shape, system, place on the axis, its runs); of a system and shape in the order of the axis."""
    found: dict[tuple[str, str, float | None], list[Run]] = {}
    for shape in experiment.shapes():
        for system in experiment.systems():
            for run in sorted(experiment.of(system, shape), key=lambda run: run.x or 0.0):
                found.setdefault((shape, system, run.x), []).append(run)
    return [(*key, runs) for key, runs in found.items()]


def _completion(experiment: Experiment, palette: Palette) -> Section:
    by_shape: dict[str, list[Bar]] = {}
    for shape, system, _, runs in _groups(experiment):
        times = [run.jct_s for run in runs]
        bound = max(run.bound_s for run in runs)
        by_shape.setdefault(shape, []).append(
            Bar(
                system,
                median(times),
                _color(experiment, system),
                bound or None,
                tuple(times),
                f"{shape} {system}: {median(times):.2f} s, at best {bound:.2f} s",
            )
        )
    chart = bars("Job completion time, seconds", list(by_shape.items()), "s", palette)
    return Section(
        "Job completion time",
        "Seconds until the last agent ended, medians; dots are single runs."
        + (_BOUND if any(run.bounds_s for run in experiment.runs) else ""),
        (chart,),
    )


def _over_axis(experiment: Experiment, palette: Palette) -> Section:
    online = bool(experiment.slo)
    charts = []
    if online:
        for latency, title in (
            ("ttft", "Time to first token, seconds (dashed: 90th percentile)"),
            ("tpot", "Time per output token, seconds"),
            ("ttst", "From the first to the second token, seconds"),
        ):
            level = experiment.slo.get(f"{latency}_s")
            charts.append(
                lines(
                    title,
                    [
                        *_lines(experiment, _mean_of(latency)),
                        *(
                            _lines(experiment, _p90_of(latency), dashed=True)
                            if latency == "ttft"
                            else []
                        ),
                    ],
                    experiment.axis,
                    "s",
                    palette,
                    limit=None if level is None else ("SLO", level),
                    top=None if level is None else level * 2,
                )
            )
        said = "Means of turns due while agents arrived, past the first quarter. Above the dashed line: SLO broken."
    else:
        charts.append(
            lines(
                "Job completion time, seconds",
                _lines(experiment, lambda run: run.jct_s),
                experiment.axis,
                "s",
                palette,
            )
        )
        advantage = _advantage(experiment)
        if advantage:
            charts.append(
                lines(
                    f"{experiment.systems()[0]} ÷ other, job completion time",
                    advantage,
                    experiment.axis,
                    "×",
                    palette,
                    limit=("equal", 1.0),
                )
            )
        said = "Medians. What is compared is in the legend."
    return Section("Latency by load" if online else "By factor", said, tuple(charts))


def _mean_of(latency: str) -> Callable[[Run], float]:
    return lambda run: run.latencies[latency].mean


def _p90_of(latency: str) -> Callable[[Run], float]:
    return lambda run: run.latencies[latency].p(90)


def _lines(
    experiment: Experiment, figure: Callable[[Run], float], *, dashed: bool = False
) -> list[Line]:
    shapes = experiment.shapes()
    found = []
    for system in experiment.systems():
        for shape in shapes:
            places: dict[float, list[float]] = {}
            for run in experiment.of(system, shape):
                if run.x is not None:
                    places.setdefault(run.x, []).append(figure(run))
            if places:
                name = system if len(shapes) == 1 else f"{shape} {system}"
                points = tuple((x, median(ys)) for x, ys in sorted(places.items()))
                found.append(Line(name, points, _color(experiment, system), dashed))
    return found


def _advantage(experiment: Experiment) -> list[Line]:
    """How many times faster each system is than the first, by place."""
    plain = _lines(experiment, lambda run: run.jct_s)
    if len(experiment.shapes()) != 1 or len(plain) < 2:
        return []
    base = dict(plain[0].points)
    return [
        Line(
            line.name,
            tuple((x, base[x] / y) for x, y in line.points if x in base and y),
            line.color,
        )
        for line in plain[1:]
    ]


def _ttft_parts(experiment: Experiment, palette: Palette) -> Section:
    """By system where the axis is a load, so that its rows show how the parts grow with it."""
    split = bool(experiment.slo)
    by_system: dict[str, list[Stack]] = {}
    for shape, system, x, runs in _groups(experiment):
        names = list(dict.fromkeys(name for run in runs for name in run.parts_s))
        parts = tuple((name, fmean(run.parts_s.get(name, 0.0) for run in runs)) for name in names)
        if parts:
            label = _label(experiment, shape, "" if split else system, x)
            by_system.setdefault(system if split else "", []).append(Stack(label, parts))
    every = [sum(s for _, s in row.parts) for rows in by_system.values() for row in rows]
    charts = tuple(
        stacks(
            f"{system}, by {experiment.axis}" if system else "Time to first token by part, seconds",
            rows,
            "s",
            palette,
            top=max(every),
        )
        for system, rows in by_system.items()
    )
    return Section(
        "Where the time to the first token goes",
        "Mean seconds. Scheduling: waiting for a decode and a prefill engine. Allocation: for memory. Reading: of "
        "cached KV from storage. Prefill: computing, with what it moves.",
        charts,
    )


def _hits(experiment: Experiment, palette: Palette) -> Section:
    names = {
        "prefill": "read by prefill node",
        "decode": "read by decode node",
        "hot": "node's memory",
        "computed": "computed",
    }
    rows = []
    for shape, system, x, runs in _groups(experiment):
        parts = tuple(
            (text, float(sum(run.hits.get(name, 0) for run in runs)))
            for name, text in names.items()
        )
        if sum(value for _, value in parts):
            rows.append(Stack(_label(experiment, shape, system, x), parts))
    charts = (
        (stacks("Prompt tokens by where their KV came from", rows, "tokens", palette, whole=True),)
        if rows
        else ()
    )
    return Section("Where KV-Cache came from", "Shares of all prompt tokens.", charts)


def _nic_use(experiment: Experiment, palette: Palette) -> Section:
    charts: list[Chart] = []
    for shape, system, x, runs in _groups(experiment):
        run = runs[0]
        nics = sorted(
            (nic for nic in storage_nics(run.nics) if nic.limit_bytes_per_s),
            key=lambda nic: (nic.role == "decode", nic.node),
        )
        if nics and len(charts) < MAX_TIMELINES:
            charts.append(
                lines(
                    f"{_label(experiment, shape, system, x)}: use, percent",
                    [
                        Line(nic.node, _use(nic), number, dashed=nic.role == "decode")
                        for number, nic in enumerate(nics)
                    ],
                    "seconds",
                    "%",
                    palette,
                    top=100,
                    dots=False,
                    height=150,
                )
            )
    return Section(
        "Storage NICs over time",
        "What each node reads, of its NIC's bandwidth; the first run of each. Dashed: decode nodes.",
        tuple(charts),
    )


def _use(nic: NicSeries) -> tuple[tuple[float, float], ...]:
    return tuple(
        (at, 100 * rate / nic.limit_bytes_per_s)
        for at, rate in zip(nic.at_s, nic.bytes_per_s, strict=True)
    )


def _balance(experiment: Experiment, palette: Palette) -> Section:
    rows = [
        Bar(
            _label(experiment, shape, system, x),
            fmean(run.balance for run in runs),
            _color(experiment, system),
            dots=tuple(run.balance for run in runs),
        )
        for shape, system, x, runs in _groups(experiment)
        if any(run.balance for run in runs)
    ]
    charts = (bars("Busiest SNIC over the mean", [("", rows)], "×", palette),) if rows else ()
    return Section(
        "Balance of the storage NICs",
        "Bytes read by the busiest node over the mean of all nodes, in windows of half a second, while all "
        "agents are there. 1 is perfect; where only prefill nodes read it is (P + D) / P at best.",
        charts,
    )


def _lanes(experiment: Experiment, palette: Palette) -> Section:
    rows = []
    for shape, system, x, runs in _groups(experiment):
        nics = [
            nic for run in runs for nic in run.nics if ".cnic" in nic.nic and nic.limit_bytes_per_s
        ]
        if any(any(nic.bytes_per_s) for nic in nics):
            used = [(100 * _mean_rate(nic) / nic.limit_bytes_per_s, nic.high_share) for nic in nics]
            high = fmean(percent * share for percent, share in used)
            low = fmean(percent * (1 - share) for percent, share in used)
            rows.append(
                Stack(
                    _label(experiment, shape, system, x),
                    (("low lane: KV-Cache", low), ("high lane: model execution", high)),
                )
            )
    charts = (
        (stacks("Use of the compute NICs by lane, percent", rows, "%", palette),) if rows else ()
    )
    return Section(
        "Lanes",
        "Of the bandwidth of all compute NICs, both directions, mean of the whole run. Single engines of a node have "
        "nobody to exchange model execution with: then there is nothing on the high lane.",
        charts,
    )


def _mean_rate(nic: NicSeries) -> float:
    moved = start = 0.0
    for at, rate in zip(nic.at_s, nic.bytes_per_s, strict=True):
        moved, start = moved + rate * (at - start), at
    return moved / start if start else 0.0


def _label(experiment: Experiment, shape: str, system: str, x: float | None) -> str:
    place = "" if x is None else f"{x:g}"
    words = (shape if len(experiment.shapes()) > 1 else "", system, place)
    return " ".join(word for word in words if word)
