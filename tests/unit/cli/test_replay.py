"""`dualpath replay`: options that mean nothing are refused before anything is sent; how figures are shown."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from tests.support.openai_server import OpenAiServer

from dualpath.cli.replay import Asked, replay
from dualpath.cli.replay_view import clock, print_result, progress_line
from dualpath.loadgen.replay import ClosedLoop, Progress, Target
from dualpath.loadgen.replay import replay as run_replay
from dualpath.loadgen.traces import Trace, Trajectory, Turn

NOBODY = "http://127.0.0.1:1/v1"


def asked(**given: Any) -> Asked:
    defaults: dict[str, Any] = dict.fromkeys(Asked.__dataclass_fields__)
    defaults |= {
        "trace": "32K", "url": NOBODY, "timed": False,
        "lengths": 0.02, "turns": 0.05, "time": 1.0, "prompts": "auto", "vocab": "300:30000",
        "exact": True, "explain": False, "retries": 0, "timeout_s": 5.0, "records": True, "agents": 2,
    }  # fmt: skip
    return Asked(**{**defaults, **given})


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"prompts": "words"}, 2, "--prompts is one of auto, ids, text, chat"),
        ({"vocab": "7"}, 2, "--vocab is LOW:HIGH"),
        ({"vocab": "7:3"}, 2, "--vocab is LOW:HIGH"),
        ({"aps": 1.0, "timed": True}, 2, "give one"),
        ({"timed": True}, 2, "does not say when agents arrive"),
        ({"search": "4"}, 2, "--search is LOW:HIGH"),
        ({"search": "4:1"}, 2, "rates go from"),
        ({"search": "1:4", "slo_percent": 42.0}, 2, "--slo-percent is one of"),
        ({"paper_rules": 0.0}, 2, "more than 0"),
        ({"max_s": float("nan")}, 2, "--max-s is more than 0"),
        ({"search": "1:4", "slo_ttft": float("nan")}, 2, "--slo-ttft is more than 0"),
        ({"url": "http://[::1/v1"}, 1, "is no address"),
        ({"trace": "none.jsonl", "lengths": 1.0, "turns": 1.0}, 1, "cannot be read"),
        ({"trace": "none.jsonl"}, 2, "--lengths and --turns are of made traces"),
        ({"lengths": 0.0001}, 2, "scale less"),
        ({}, 1, "dualpath: no connection to http://127.0.0.1:1/v1"),
    ],
)
def test_what_cannot_work_is_said(
    given: dict[str, Any], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(asked(**given)) == code
    assert said in capsys.readouterr().err


def test_progress_says_rates_and_when_it_ends() -> None:
    progress = Progress(100.0, 8, 3, 8, 50, 75, 1, 2, 5, 4000, 0.25, 0.0012)
    line = progress_line(progress)
    for part in (
        "1:40", "agents 3/8 (8 started)", "turns 50/75, 0.5/s", "5 in flight", "40 tokens/s",
        "TTFT 0.25 s", "1 failed", "2 sent again", "client lag 1.2 ms", "ETA 0:50",
    ):  # fmt: skip
        assert part in line
    assert "ETA" not in progress_line(Progress(1, 1, 0, None, 0, None, 0, 0, 1, 0, None, 0))
    assert clock(3725) == "1:02:05"


async def test_figures_and_warnings_are_shown() -> None:
    trace = Trace("t", (Trajectory("a", (Turn(4, 3), Turn(4, 3))),))
    async with OpenAiServer() as server:
        good = await run_replay(trace, Target(server.url), ClosedLoop(1))
    async with OpenAiServer(lambda request: request.refuse(500, "out of order")) as server:
        bad = await run_replay(trace, Target(server.url), ClosedLoop(1))
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as shown:
        print_result(good, console)
        print_result(bad, console)
    text = shown.get()
    assert "1 of 1 agents, 2 of 2 turns" in text
    assert "0 of 1 agents, 0 of 1 turns" in text
    assert "! 1 turns failed: http-500 (out of order)" in text
