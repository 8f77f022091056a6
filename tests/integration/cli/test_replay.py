"""`dualpath replay` as a process, and its search, against a small server."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.openai_server import Asked as AskedOfServer
from tests.support.openai_server import OpenAiServer
from tests.support.wait import until
from tests.unit.cli.test_replay import asked

from dualpath.cli.replay import search
from dualpath.loadgen.replay import StopRules, Target
from dualpath.loadgen.traces import Trace, Trajectory, Turn, save_trace

TRACE = Trace("t", (Trajectory("a", (Turn(4, 3), Turn(4, 3))), Trajectory("b", (Turn(70, 2),))))


async def test_ctrl_c_ends_a_replay_and_keeps_what_it_found(tmp_path: Path) -> None:
    answered = list[int]()

    async def respond(request: AskedOfServer) -> None:
        if request.number == 2:
            await asyncio.Event().wait()
        await request.whole()
        answered.append(request.number)

    save_trace(TRACE, tmp_path / "trace.jsonl")
    output = tmp_path / "result.json"
    async with OpenAiServer(respond) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dualpath.cli.main", "replay", "--url", server.url,
            "--trace", str(tmp_path / "trace.jsonl"), "--agents", "2", "-o", str(output),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        # The third turn will not be answered.
        await until(
            lambda: len(server.asked) == 3 and len(answered) == 2, what="two of three turns"
        )
        process.send_signal(signal.SIGINT)
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        await until(lambda: not server.open, what="its stream has ended at the server")
    assert process.returncode == 130
    assert "interrupted after" in said.decode()
    found = json.loads(output.read_text())
    assert found["ended"] == "interrupted"
    assert found["turns"] == {"all": 3, "ok": 2}
    assert found["errors"] == {}


async def test_a_search_tries_rates_with_contents_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A server that is overloaded by the third rate: from then on it refuses.
    rates: set[tuple[int, ...]] = set()

    async def respond(request: AskedOfServer) -> None:
        if len(request.prompt) == 70:
            rates.add(tuple(request.prompt))
        await (request.refuse(500, "too much") if len(rates) > 2 else request.whole())

    output = tmp_path / "result.json"
    async with OpenAiServer(respond) as server:
        wanted = replace(
            asked(search="20:80", agents=2, slo_ttft=60.0, slo_tpot=60.0), output=output
        )
        never = StopRules(ttft_s=None, lookback_s=float("inf"))
        code = await search(wanted, TRACE, Target(server.url), never, Console())
        assert code == 0
        other = replace(TRACE, seed=100)
        assert await search(wanted, other, Target(server.url), never, Console()) == 1
    shown = capsys.readouterr().out
    assert "within the SLO: 80 agents/s; more was not tried" in shown
    assert len(rates) == 3
    found = json.loads(output.read_text())
    assert found["aps"] is None
    assert "turns failed" in found["steps"][0]["misses"][0]
