"""The picture of distributions is well-formed, and its curves lie where the numbers are."""

from __future__ import annotations

import random
from xml.etree import ElementTree

from dualpath.cli.bench.plot import distribution_svg

SVG = "{http://www.w3.org/2000/svg}"


def curves(svg: str) -> list[list[tuple[float, float]]]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    return [
        [
            (float(x), float(y))
            for x, y in (point.split(",") for point in line.attrib["points"].split())
        ]
        for line in found
    ]


def ticks(svg: str) -> dict[float, float]:
    """Milliseconds on the axis, and where they are."""
    texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return {
        float(text.text or ""): float(text.attrib["x"])
        for text in texts
        if text.attrib.get("text-anchor") == "middle" and text.text != "milliseconds"
    }


def test_curves_rise_from_the_shortest_to_the_longest_time() -> None:
    source = random.Random(1)
    series = {
        "a": [source.uniform(0.001, 0.002) for _ in range(5000)],
        "b": [source.uniform(0.003, 0.2) for _ in range(17)],
    }
    svg = distribution_svg(series, "title")
    for curve, times in zip(curves(svg), series.values(), strict=True):
        assert curve == sorted(curve, key=lambda point: (point[0], -point[1]))
        at = ticks(svg)
        assert min(at.values()) <= curve[0][0] <= curve[-1][0] <= max(at.values())
        # All times up to the last are all of them: the top of the frame, where every curve ends.
        assert curve[-1][1] == min(y for every in curves(svg) for _, y in every)
        lower = [x for ms, x in at.items() if ms <= max(times) * 1e3]
        assert curve[-1][0] >= max(lower)


def test_a_thousand_points_are_not_drawn_one_by_one() -> None:
    (curve,) = curves(distribution_svg({"a": [0.001 + n * 1e-7 for n in range(50_000)]}, ""))
    assert len(curve) < 1000


def test_names_are_text_and_not_markup() -> None:
    svg = distribution_svg({"p50 < 1 & p99": [0.001]}, "<b>")
    words = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert "p50 < 1 & p99" in words
    assert "<b>" in words
