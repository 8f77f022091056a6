"""Charts as SVG, drawn with nothing but text, as wide as a phone. Pure.

Colours come from a `Palette`: variables of the page's style, which knows light and dark, or plain colours for a
picture. Every series is named in a legend, and what is pointed at says its figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 400
_LABEL = 128
_RIGHT = 52
_ROW = 20
_CHAR = 7.0
_FONT = 12


@dataclass(frozen=True)
class Palette:
    """`series` in the order of their use; `ink` for text, `soft` for axes, `mark` for bounds and limits."""

    ink: str
    soft: str
    paper: str
    mark: str
    series: tuple[str, ...]

    def of(self, number: int) -> str:
        return self.series[number % len(self.series)]


PAGE = Palette(
    "var(--ink)",
    "var(--line)",
    "var(--paper)",
    "var(--mark)",
    tuple(f"var(--s{n})" for n in range(7)),
)
PICTURE = Palette(
    "#1c2430",
    "#d5dae1",
    "#ffffff",
    "#b3261e",
    ("#2563c4", "#d97706", "#0f8a5f", "#7c4dbe", "#c2316b", "#0e7f96", "#7a8088"),
)


@dataclass(frozen=True)
class Bar:
    """`mark`: a line across it (a bound); `dots`: the single figures that it is the median of."""

    label: str
    value: float
    color: int
    mark: float | None = None
    dots: tuple[float, ...] = ()
    said: str = ""


@dataclass(frozen=True)
class Stack:
    label: str
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Line:
    name: str
    points: tuple[tuple[float, float], ...]
    color: int
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """A drawing's inside, WIDTH wide and `height` high."""

    title: str
    body: str
    height: float

    def svg(self, palette: Palette) -> str:
        """On its own."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" '
            f'aria-label="{escape(self.title, quote=True)}" font-family="system-ui, sans-serif" '
            f'font-size="{_FONT}" fill="{palette.ink}">{self.body}</svg>'
        )


def bars(
    title: str, groups: Sequence[tuple[str, Sequence[Bar]]], unit: str, palette: Palette
) -> Chart:
    """Horizontal bars in named groups."""
    every = [bar for _, group in groups for bar in group]
    top = max([bar.value for bar in every] + [bar.mark or 0 for bar in every], default=0) or 1.0
    room = WIDTH - _LABEL - _RIGHT
    out, y = [], 4.0
    for name, group in groups:
        if name:
            out.append(_text(0, y + 13, name, weight="600"))
            y += _ROW
        for bar in group:
            width = max(bar.value / top * room, 1)
            middle = y + _ROW / 2
            said = bar.said or f"{bar.label}: {number(bar.value)} {unit}"
            out.append(_text(_LABEL - 6, middle + 4, _cut(bar.label, _LABEL - 8), anchor="end"))
            out.append(
                f'<rect x="{_LABEL}" y="{y + 3:.1f}" width="{width:.1f}" height="{_ROW - 6}" rx="2" '
                f'fill="{palette.of(bar.color)}"><title>{escape(said)}</title></rect>'
            )
            out += [
                f'<circle cx="{_LABEL + dot / top * room:.1f}" cy="{middle:.1f}" r="2" '
                f'fill="{palette.paper}" stroke="{palette.ink}" stroke-width="0.7"/>'
                for dot in (bar.dots if len(bar.dots) > 1 else ())
            ]
            end = width
            if bar.mark:
                x = _LABEL + bar.mark / top * room
                end = max(end, bar.mark / top * room)
                out.append(
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1:.1f}" y2="{y + _ROW - 1:.1f}" '
                    f'stroke="{palette.mark}" stroke-width="2.5"><title>bound: {number(bar.mark)} {unit}'
                    "</title></line>"
                )
            out.append(_text(_LABEL + end + 6, middle + 4, number(bar.value)))
            y += _ROW
        y += 6
    return Chart(title, "".join(out), y)


def stacks(
    title: str,
    rows: Sequence[Stack],
    unit: str,
    palette: Palette,
    *,
    whole: bool = False,
    top: float | None = None,
) -> Chart:
    """Horizontal bars of parts; `whole`: each is all there is, so they are equally long. `top`: what the full width
    stands for; default: the longest."""
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts))
    sums = [sum(value for _, value in row.parts) for row in rows]
    top = top or max(sums, default=0) or 1.0
    legend, y = _legend([(name, k, False) for k, name in enumerate(names)], palette)
    out = [legend]
    room = WIDTH - _LABEL - _RIGHT
    for row, total in zip(rows, sums, strict=True):
        x = float(_LABEL)
        out.append(_text(_LABEL - 6, y + 14, _cut(row.label, _LABEL - 8), anchor="end"))
        for name, value in row.parts:
            width = value / ((total or 1.0) if whole else top) * room
            share = f" ({value / total:.0%})" if total else ""
            out.append(
                f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="{_ROW - 6}" '
                f'fill="{palette.of(names.index(name))}">'
                f"<title>{escape(f'{row.label}, {name}: {number(value)} {unit}{share}')}</title></rect>"
            )
            x += width
        if not whole:
            out.append(_text(x + 6, y + 14, number(total)))
        y += _ROW
    return Chart(title, "".join(out), y + 6)


def lines(
    title: str,
    series: Sequence[Line],
    x_name: str,
    y_name: str,
    palette: Palette,
    *,
    limit: tuple[str, float] | None = None,
    top: float | None = None,
    dots: bool = True,
    height: int = 190,
) -> Chart:
    """Lines over a linear axis from 0 up. `limit`: a named level."""
    points = [point for line in series for point in line.points]
    if not points:
        return Chart(title, _text(0, 16, "nothing was measured"), 24)
    named = [(line.name, line.color, line.dashed) for line in series]
    legend, y0 = _legend(named, palette) if len({n for n, _, _ in named}) > 1 else ("", 0.0)
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    if not dots:
        low = min(low, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    peak = top or max([y for _, y in points] + ([limit[1] * 1.15] if limit else []))
    steps = ticks(peak)
    if top is None:
        peak = max(peak, steps[-1])
    else:
        steps = [step for step in steps if step <= top]
    left, right, above, below = 44.0, WIDTH - 16.0, y0 + 20, y0 + height - 34

    def px(x: float) -> float:
        return left + (x - low) / (high - low) * (right - left)

    def py(y: float) -> float:
        return below - min(y, peak) / (peak or 1.0) * (below - above)

    out = [legend, _text(0, y0 + 10, y_name, size=11)]
    for step in steps:
        out.append(
            f'<line x1="{left}" x2="{right}" y1="{py(step):.1f}" y2="{py(step):.1f}" '
            f'stroke="{palette.soft}"/>'
        )
        out.append(_text(left - 5, py(step) + 4, number(step), anchor="end", size=11))
    free = 0.0
    for x in _x_ticks(low, high, {x for x, _ in points}):
        half = len(number(x)) * _CHAR / 2
        if px(x) - half >= free:
            out.append(_text(px(x), below + 15, number(x), anchor="middle", size=11))
            free = px(x) + half + 4
    out.append(_text((left + right) / 2, below + 30, x_name, anchor="middle", size=11))
    for line in series:
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in line.points)
        color = palette.of(line.color)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
        )
        if dots:
            out += [
                f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{color}"><title>'
                f"{escape(f'{line.name} at {number(x)}: {number(y)}')}</title></circle>"
                for x, y in line.points
            ]
    if limit is not None:
        name, level = limit
        out.append(
            f'<line x1="{left}" x2="{right}" y1="{py(level):.1f}" y2="{py(level):.1f}" '
            f'stroke="{palette.mark}" stroke-width="1.5" stroke-dasharray="7 4"/>'
        )
        out.append(_text(right, py(level) - 4, name, anchor="end", size=11))
    return Chart(title, "".join(out), y0 + height)


def number(value: float) -> str:
    """In three digits or so."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ticks(top: float) -> list[float]:
    """From 0 to `top` or a little less or more, four to six steps of 1, 2 or 5."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [step * k for k in range(math.ceil(top / step - 1e-9) + 1)]


def _x_ticks(low: float, high: float, given: set[float]) -> list[float]:
    if len(given) <= 7:
        return sorted(given)
    return [tick for tick in ticks(high) if low <= tick <= high]


def _legend(named: Iterable[tuple[str, int, bool]], palette: Palette) -> tuple[str, float]:
    """Names with their colours, in as many rows as they need; and the height of those."""
    out, x, y = [], 0.0, 4.0
    for name, color, dashed in dict.fromkeys(named):
        width = 20 + len(name) * _CHAR + 10
        if x and x + width > WIDTH:
            x, y = 0.0, y + 17
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        out.append(
            f'<line x1="{x:.0f}" x2="{x + 14:.0f}" y1="{y + 7:.0f}" y2="{y + 7:.0f}" '
            f'stroke="{palette.of(color)}" stroke-width="{3 if dashed else 8}"{dash}/>'
        )
        out.append(_text(x + 19, y + 11, name))
        x += width
    return "".join(out), y + 20


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = _FONT, weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    smaller = f' font-size="{size}"' if size != _FONT else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{smaller}{bold}>{escape(text)}</text>'
    )


def _cut(text: str, width: float) -> str:
    room = int(width / _CHAR)
    return text if len(text) <= room else text[: room - 1] + "…"
