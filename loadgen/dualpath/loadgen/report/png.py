"""The report's charts as one picture, for slides and issues. Needs the extra `dualpath[png]`, and a font."""

from __future__ import annotations

from html import escape
from pathlib import Path

from dualpath.loadgen.report.figures import sections
from dualpath.loadgen.report.results import Experiment
from dualpath.loadgen.report.svg import PICTURE, WIDTH

_COLUMNS = 2
_GAP = 28
_HEAD = 64
_FONT_NAMES = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf", "Arial.ttf")
_FONT_PLACES = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
)


class PngUnavailable(Exception):
    """There is no picture; the text says what to install."""


def write_png(experiment: Experiment, path: Path, zoom: float = 2.0) -> None:
    """Raises PngUnavailable, OSError."""
    try:
        import resvg_py
    except ImportError:
        raise PngUnavailable(
            "PNG needs resvg: run pip install 'dualpath[png]', or use the page"
        ) from None
    font = find_font()
    if font is None:
        raise PngUnavailable(
            "there is no font to draw with: install fonts-dejavu-core, or use the page"
        )
    drawn = resvg_py.svg_to_bytes(
        svg_string=picture(experiment),
        zoom=zoom,
        skip_system_fonts=True,
        font_files=[str(font)],
    )
    path.write_bytes(bytes(drawn))


def picture(experiment: Experiment, most: int | None = None) -> str:
    """The charts, of the first `most` sections where that is said, in two columns: one SVG in plain colours."""
    drawn = sections(experiment, PICTURE)[:most]
    charts = [chart for section in drawn for chart in section.charts]
    heights = [float(_HEAD)] * _COLUMNS
    placed = []
    for chart in charts:
        column = heights.index(min(heights))
        x = _GAP + column * (WIDTH + _GAP)
        placed.append(
            f'<g transform="translate({x} {heights[column]:.0f})">'
            f'<text x="0" y="10" font-size="12" font-weight="600">{escape(chart.title)}</text>'
            f'<g transform="translate(0 20)">{chart.body}</g></g>'
        )
        heights[column] += chart.height + 20 + _GAP
    width, height = _GAP + _COLUMNS * (WIDTH + _GAP), max(heights)
    machine = experiment.machine
    under = f"{experiment.began}, {machine.get('cores')} cores"
    if not experiment.valid:
        bad = sum(not run.valid for run in experiment.runs)
        under += f"; {bad} of {len(experiment.runs)} runs are invalid"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" font-family="DejaVu Sans, Liberation Sans, Noto Sans, sans-serif" '
        f'font-size="12" fill="{PICTURE.ink}">'
        f'<rect width="{width}" height="{height:.0f}" fill="{PICTURE.paper}"/>'
        f'<text x="{_GAP}" y="28" font-size="16" font-weight="600">{escape(experiment.title)}</text>'
        f'<text x="{_GAP}" y="46" font-size="11">{escape(under)}</text>'
        f"{''.join(placed)}</svg>"
    )


def find_font() -> Path | None:
    for place in _FONT_PLACES:
        for name in _FONT_NAMES:
            found = next(Path(place).rglob(name), None) if Path(place).is_dir() else None
            if found is not None:
                return found
    return None
