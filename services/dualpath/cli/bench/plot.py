"""Distributions as an SVG picture, drawn with nothing but text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 112, 52
_COLOURS = ("#555555", "#0b6e4f", "#c1121f", "#1f4e9e", "#b8860b")
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_POINTS = 400


def distribution_svg(series: Mapping[str, Sequence[float]], title: str) -> str:
    """The share of times that are at most so long, over milliseconds on a logarithmic axis. `series`: seconds by
    name, none of them empty; there is room for the names of four."""
    lowest = min(min(times) for times in series.values()) * 1e3
    highest = max(max(times) for times in series.values()) * 1e3
    axis = _Axis(lowest, highest)
    body = [*_frame(title, axis)]
    for number, (name, times) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{axis.x(ms):.1f},{_y(share):.1f}" for ms, share in _steps(times))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = 48 + 18 * number
        body.append(f'<rect x="{_LEFT}" y="{y - 6}" width="14" height="4" fill="{colour}"/>')
        body.append(f'<text x="{_LEFT + 22}" y="{y}">{escape(name)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


class _Axis:
    """Milliseconds, logarithmic, over whole steps of 1, 2 and 5."""

    def __init__(self, lowest: float, highest: float) -> None:
        ticks = [
            mantissa * 10.0**power
            for power in range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
            for mantissa in (1, 2, 5)
        ]
        first = max(number for number, tick in enumerate(ticks) if tick <= lowest)
        last = min(number for number, tick in enumerate([*ticks, math.inf]) if tick >= highest)
        self.ticks = ticks[first : last + 1]
        self._low = math.log10(self.ticks[0])
        self._span = math.log10(self.ticks[-1]) - self._low or 1.0

    def x(self, ms: float) -> float:
        share = (math.log10(ms) - self._low) / self._span
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _frame(title: str, axis: _Axis) -> list[str]:
    left, right, low, high = _LEFT, _WIDTH - _RIGHT, _y(0), _y(1)
    lines = [f'<text x="{left}" y="24" font-size="14">{escape(title)}</text>']
    for tick in axis.ticks:
        x = axis.x(tick)
        lines.append(
            f'<line x1="{x:.1f}" y1="{low}" x2="{x:.1f}" y2="{high}" stroke="#e5e5e5"/>'
            f'<text x="{x:.1f}" y="{low + 18}" text-anchor="middle">{tick:g}</text>'
        )
    for share in _SHARES:
        y = _y(share)
        lines.append(
            f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#e5e5e5"/>'
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{share:.0%}</text>'
        )
    middle = (left + right) / 2
    lines.append(f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">milliseconds</text>')
    return lines


def _steps(times: Sequence[float]) -> list[tuple[float, float]]:
    """(milliseconds, share of times up to it): enough points for the picture, the ends always."""
    ordered = sorted(times)
    count = len(ordered)
    ranks = sorted({round(i * (count - 1) / _POINTS) for i in range(_POINTS + 1)})
    # The last percent is what it is all about.
    ranks = sorted({*ranks, *range(max(count - max(count // 100, 1), 0), count)})
    return [(ordered[rank] * 1e3, (rank + 1) / count) for rank in ranks]
