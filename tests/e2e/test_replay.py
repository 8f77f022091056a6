"""Replay against a whole cluster: every generated id is the one that the model must give, and turns hit what came
before."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.support.client import oracle, spec_of
from tests.support.cluster import LocalCluster

from dualpath.loadgen.replay import ClosedLoop, Target, replay
from dualpath.loadgen.traces import Trace, Trajectory, Turn, save_trace
from dualpath.loadgen.traces.content import prompt_ids

VOCAB = (300, 30_000)
TRACE = Trace(
    "e2e",
    (
        Trajectory("a", (Turn(200, 6), Turn(30, 60), Turn(70, 5)), seed=1),
        Trajectory("b", (Turn(64, 1), Turn(1, 2))),
    ),
    seed=1212,
)


async def test_replayed_agents_get_the_tokens_that_the_model_must_give(
    cluster: LocalCluster,
) -> None:
    target = Target(cluster.base_url, prompts="ids", explain=True, vocab=VOCAB)
    result = await replay(TRACE, target, ClosedLoop(3), keep_ids=True)
    assert result.errors == {}
    spec = spec_of(cluster)
    answers: dict[int, list[tuple[int, ...]]] = {}
    for record in result.turns:
        trajectory = TRACE.agent(record.agent)
        earlier = answers.setdefault(record.agent, [])
        prompt = prompt_ids(TRACE, trajectory, record.turn, earlier, VOCAB)
        assert record.prompt_tokens == len(prompt)
        wanted = await asyncio.to_thread(oracle, spec, prompt, record.wanted_tokens)
        assert record.token_ids == tuple(wanted)
        assert record.explain is not None
        assert record.explain["timings_s"]["ttft"] > 0
        earlier.append(record.token_ids or ())
    assert {number: len(given) for number, given in answers.items()} == {0: 3, 1: 2, 2: 4}


def test_the_command_replays_a_file_and_writes_what_it_found(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    trace, output = tmp_path / "trace.jsonl", tmp_path / "result.json"
    save_trace(TRACE, trace)
    command = [sys.executable, "-m", "dualpath.cli.main", "replay", "--url", cluster.base_url]
    command += ["--trace", str(trace), "--aps", "50", "--agents", "2", "--prompts", "chat"]
    ended = subprocess.run(
        [*command, "-o", str(output)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "5 of 5 turns" in ended.stdout
    assert "TTFT" in ended.stdout
    found = json.loads(output.read_text())
    assert found["turns"] == {"all": 5, "ok": 5}
    assert (found["prompts"], found["model"]) == ("chat", cluster.model)
    assert found["tokens"]["generated"] == sum(t.generate_tokens for t in TRACE.trajectories)
    assert len(found["turn_records"]["first_s"]) == 5
    assert found["settings"]["load"]["aps"] == 50
