import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.unit.loadgen.report.made import experiment, run

from dualpath.loadgen.report.figures import sections
from dualpath.loadgen.report.page import page, write_page
from dualpath.loadgen.report.png import picture, write_png
from dualpath.loadgen.report.results import Experiment
from dualpath.loadgen.report.svg import PAGE, Line, lines, number, ticks

OFFLINE = experiment(
    *(
        run(system, jct, shape=shape, repetition=n)
        for n in range(2)
        for shape in ("1P1D", "2P1D")
        for system, jct in (("basic", 20.0 + n), ("dualpath", 11.0 + n))
    )
)
ONLINE = experiment(
    *(
        run(system, 5.0 * x, x=x, met_slo=x < 1)
        for x in (0.5, 1.0, 1.5)
        for system in ("basic", "dualpath")
    ),
    axis="agents per second",
    slo={"ttft_s": 1.0, "tpot_s": 0.2},
)
EVERY = pytest.mark.parametrize("found", [OFFLINE, ONLINE], ids=["offline", "online"])


class _Links(HTMLParser):
    """All that a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "img", "object", "embed"):
            self.found.append(tag)
        self.found += [
            value
            for name, value in attrs
            if name in ("src", "href", "action", "srcset") and value and value != "data:,"
        ]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@EVERY
def test_the_page_needs_nothing_but_itself(found: Experiment) -> None:
    parser = _Links()
    text = page(found)
    parser.feed(text)
    assert parser.found == []
    assert parser.open == []
    assert "@import" not in text
    assert "url(" not in text


@EVERY
def test_drawings_are_well_formed_and_named(found: Experiment) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page(found))
    assert len(drawings) >= 5
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_the_page_answers_an_engineers_questions() -> None:
    headings = [section.heading for section in sections(OFFLINE, PAGE)]
    assert headings == [
        "Job completion time",
        "Where the time to the first token goes",
        "Where KV-Cache came from",
        "Storage NICs over time",
        "Balance of the storage NICs",
        "Lanes",
    ]
    online = page(ONLINE)
    assert "Latency by load" in online
    assert "dualpath, by agents per second" in online
    assert "1.5, reading: 0.5 s" in online
    assert "SLO" in online


def test_text_of_results_cannot_become_markup() -> None:
    text = page(OFFLINE)
    assert "<all>" not in text
    assert "<busy>" not in text
    assert "<so>" not in text
    assert "Offline &amp; &lt;all&gt;" in text


def test_invalid_runs_are_said_first() -> None:
    text = page(experiment(run("basic", 9.0, ok=False), run("dualpath", 5.0)))
    assert "1 of 2 runs are invalid, as a gate did not hold: CPU not the limit" in text
    assert text.index("are invalid") < text.index("<svg")
    assert "All gates held in all 8 runs" in page(OFFLINE)


def test_the_page_is_for_phones_and_for_dark_rooms(tmp_path: Path) -> None:
    write_page(OFFLINE, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text


def test_names_of_places_that_lie_close_do_not_touch() -> None:
    points = ((1.0, 1.0), (2.65, 1.0), (2.79, 2.0), (2.94, 3.0), (5.3, 4.0))
    chart = lines("", [Line("a", points, 0)], "x", "y", PAGE).svg(PAGE)
    assert all(f">{name}<" in chart for name in ("1", "2.65", "5.3"))
    assert not any(f">{name}<" in chart for name in ("2.79", "2.94"))


@EVERY
def test_the_picture_is_one_drawing_in_plain_colours(found: Experiment) -> None:
    drawing = picture(found)
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "var(" not in drawing


def test_a_picture_of_the_first_sections_has_their_charts_only() -> None:
    assert "Job completion time" in picture(OFFLINE, 1)
    assert "Time to first token by part" not in picture(OFFLINE, 1)
    assert "Time to first token by part" in picture(OFFLINE, 2)


def test_the_lanes_of_compute_nics_are_shown_by_system() -> None:
    """One NIC of 8 MB/s that moved 1 MB/s, a fifth of it on the high lane."""
    text = page(experiment(run("dualpath", 5.0)))
    assert "dualpath, low lane: KV-Cache: 10 %" in text
    assert "dualpath, high lane: model execution: 2.5 %" in text


def test_the_picture_is_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resvg_py")
    monkeypatch.setattr("dualpath.loadgen.report.png.find_font", lambda: None)
    from dualpath.loadgen.report.png import PngUnavailable

    with pytest.raises(PngUnavailable, match="install fonts-dejavu-core"):
        write_png(OFFLINE, tmp_path / "none.png")
    monkeypatch.undo()
    try:
        write_png(OFFLINE, tmp_path / "page.png", zoom=1)
    except PngUnavailable as reason:
        pytest.skip(str(reason))
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_an_experiment_without_figures_has_a_page_too() -> None:
    assert "All gates held" in page(experiment())


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.5, "1.5"), (12.34, "12.3"), (1234.5, "1,234"), (100, "100")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("top", [0.003, 0.7, 1, 9.99, 10, 130, 7777])
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert found[-1] >= top * 0.999
    assert 3 <= len(found) <= 7
