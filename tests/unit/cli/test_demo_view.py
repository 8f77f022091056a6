from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, RenderableType

from dualpath.cli.agent import Turn
from dualpath.cli.api_client import Answer
from dualpath.cli.demo import demo
from dualpath.cli.demo_view import DemoView, NicTotal, totals, ttft_table
from dualpath.wire.types import NicUse


def shown(view: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100).print(view)
    return stream.getvalue()


def turn(
    number: int, path: str, ttft_s: float, cold_ttft_s: float | None = None, cached: int = 64
) -> Turn:
    sides = {"prefill": (3 << 20, 0), "decode": (0, 5 << 20)}.get(path, (0, 0))
    return Turn(number, Answer("x", 100, cached, 1, ttft_s, None, path, sides), cold_ttft_s)


TURNS = [
    turn(1, "none", 0.5, 0.5, cached=0),
    turn(2, "prefill", 0.100),
    turn(3, "decode", 0.200),
    turn(4, "prefill", 0.300, 1.2),
]


def row(text: str, of: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if of in line)
    return re.split(r" {2,}", line.strip())


def test_times_are_compared_by_read_path_and_only_for_the_same_prompts() -> None:
    text = shown(ttft_table(TURNS))
    assert row(text, "(PE)")[1:] == ["2", "200 ms", "1", "300 ms", "1.20 s", "4.0×"]
    assert row(text, "(DE)")[1:] == ["1", "200 ms", "0"]
    assert row(text, "nothing cached")[1:] == ["1", "500 ms"]


def test_lanes_and_directions_of_a_nic_are_summed_and_shards_left_out() -> None:
    nics = [
        NicUse("decode-0.snic", "low", "rx", 1),
        NicUse("prefill-0.snic", "low", "rx", 2),
        NicUse("prefill-0.snic", "high", "rx", 4),
        NicUse("prefill-0.snic", "low", "tx", 8),
        NicUse("storage-0.snic", "low", "tx", 16),
    ]
    assert totals(nics) == [NicTotal("prefill-0.snic", 6, 8), NicTotal("decode-0.snic", 1, 0)]


def test_the_view_shows_turns_and_the_nics_of_both_sides() -> None:
    view = DemoView(lambda: [NicUse("prefill-0.snic", "low", "rx", 7 << 20)])
    view.turns += TURNS
    text = shown(view)
    assert "4 of 12" in text
    assert row(text, " 1.20 s ") == ["4", "100", "64", "prefill", "300 ms", "1.20 s"]
    assert row(text, "prefill-0.snic")[1] == "7.0 MiB"


def test_on_a_low_terminal_the_last_turns_and_the_nics_are_in_sight() -> None:
    view = DemoView(lambda: [NicUse("decode-0.snic", "low", "rx", 9)], height=14)
    view.turns += TURNS
    text = shown(view)
    assert text.count("\n") <= 13
    assert " 1.20 s " in text
    assert " 500 ms " not in text
    assert "decode-0.snic" in text


def test_before_anything_was_moved_there_is_a_picture_too() -> None:
    assert "0 of 12" in shown(DemoView(lambda: [NicUse("decode-0.snic", "low", "rx", 0)]))


def test_of_a_cluster_elsewhere_the_answers_tell_what_was_read() -> None:
    view = DemoView(None)
    view.turns += TURNS
    text = shown(view)
    assert row(text, " 6.0 MiB ") == ["prefill", "6.0 MiB"]
    assert row(text, " 5.0 MiB ") == ["decode", "5.0 MiB"]


@pytest.mark.parametrize(
    ("model", "url", "says"),
    [
        ("tiny", "http://h/v1", "leave --model out"),
        ("gpt", None, "choose smollm2, tiny, synthetic"),
    ],
)
def test_wrong_use_is_said(
    model: str, url: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(model, url) == 2
    assert says in capsys.readouterr().err
