"""Nodes join and leave while clients stream: how soon one that joins takes load, and whether anything is lost.

    python -m benchmarks.joining [--rounds 3] [--stay 4]

A synthetic cluster of one prefill and one decode node, and closed-loop clients that stream answers, more than one
prefill node serves. In each round `dualpath scale` adds a prefill and a decode node, and after `stay` seconds lets
them leave again, all of it under load. Printed for each node that joined, from its registration at the scheduler:

    assigned     until the scheduler gave it its first request
    first token  until a client had the first token that it computed (of a decode node an answer's second token)

and for each that left, how long that took. Wanted: assigned within a second; no failed request, no second attempt,
and every answer token for token what the emulated model's arithmetic says. Exit code 1 where that did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from benchmarks.local import Cluster, environment, machine, random_ids

from dualpath.model.spec import load_spec
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.settings import load_settings
from dualpath.wire.types import Sampling

PROMPT_TOKENS = 200
ANSWER_TOKENS = 16
CLIENTS = 12
WANTED_S = 1.0
SETTINGS: dict[str, Any] = {
    "model": "synthetic",
    "max_context": 4096,
    # A request a forward, so that clients ask one after the other and not all at once.
    "chunk_tokens": PROMPT_TOKENS,
    "prefill_buffer": "64MiB",
    "decode_buffer": "96MiB",
    "prefill_hbm": "64MiB",
    "decode_hbm": "96MiB",
    "log_format": "json",
    "synthetic": {"token_s": 0.5e-3, "decode_step_s": 0.01},
}


@dataclass(frozen=True)
class Streamed:
    """An answer that came whole; `at` is when each of its tokens came, on the monotonic clock."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    at: Sequence[float]
    explain: Mapping[str, Any]


@dataclass(frozen=True)
class Joined:
    """Times on the monotonic clock; None: never."""

    node: str
    registered: float
    assigned: float | None
    first_token: float | None

    def __str__(self) -> str:
        def after(at: float | None) -> str:
            return "never" if at is None else f"{(at - self.registered) * 1e3:5.0f} ms"

        return (
            f"{self.node:10} assigned {after(self.assigned)}, first token {after(self.first_token)}"
        )

    @property
    def in_time(self) -> bool:
        return self.assigned is not None and self.assigned - self.registered <= WANTED_S


async def stream(http: httpx.AsyncClient, model: str, prompt: Sequence[int]) -> Streamed:
    """Raises RuntimeError where the answer is not whole."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    tokens: list[int] = []
    at: list[float] = []
    explain: dict[str, Any] = {}
    headers = {"X-DualPath-Explain": "1"}
    async with http.stream("POST", "/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"status {answer.status_code}: {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(f"the stream failed: {event['error']}")
            for choice in event.get("choices", ()):
                tokens += choice.get("token_ids") or ()
            at += [time.monotonic()] * (len(tokens) - len(at))
            explain = event.get("dualpath", explain)
    if len(tokens) != ANSWER_TOKENS or not explain:
        raise RuntimeError(f"{len(tokens)} of {ANSWER_TOKENS} tokens came: {explain}")
    return Streamed(prompt, tokens, at, explain)


class Clients:
    """Keep asking until `stop`; what came, and what failed."""

    def __init__(self, running: Cluster) -> None:
        self.answers: list[Streamed] = []
        self.failures: list[str] = []
        self._running = running
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Clients:
        self._http = httpx.AsyncClient(
            base_url=self._running.base_url, timeout=120, trust_env=False
        )
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Requests that are under way are waited for: they count too."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _ask(self, number: int) -> None:
        source = random.Random(number)
        while not self._stop.is_set():
            try:
                prompt = random_ids(source, PROMPT_TOKENS)
                self.answers.append(await stream(self._http, self._running.model, prompt))
            except (RuntimeError, httpx.HTTPError) as failure:
                self.failures.append(f"{type(failure).__name__}: {failure}")
                await asyncio.sleep(0.1)


async def command(running: Cluster, *words: str) -> str:
    """What a `dualpath` command on the cluster printed. Raises RuntimeError where it failed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dualpath.cli.main", *words, "--home", str(running.home.root)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said = (await process.communicate())[0].decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise RuntimeError(f"dualpath {words[0]} failed: {said}")
    return said


async def round_of(
    running: Cluster, stay_s: float
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Two nodes join, stay, and leave. How long each took to leave, and the decisions until then."""
    await command(running, "scale", "--prefill", "2", "--decode", "2")
    await asyncio.sleep(stay_s)
    decisions = json.loads(await command(running, "why", "--json", "--limit", "2000"))
    left: dict[str, float] = {}
    for role in ("prefill", "decode"):
        began = time.monotonic()
        for node in leavers(await command(running, "scale", f"--{role}", "1"), role):
            left[node] = time.monotonic() - began
    return left, decisions


def leavers(said: str, role: str) -> list[str]:
    """The nodes of a role that left, of what `scale` printed: a line of each, after what it waits for."""
    words = [line.split()[0] for line in said.splitlines() if line.strip()]
    return [word for word in words if word.rpartition("-")[0] == role]


def registrations(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """When nodes registered, on the monotonic clock, as the scheduler logged it."""
    to_monotonic = time.monotonic() - time.time()
    return {
        event["node"]: datetime.fromisoformat(event["ts"]).timestamp() + to_monotonic
        for event in events
        if event.get("event") == "node registered"
    }


def joined(
    node: str,
    registered: float,
    decisions: Iterable[Mapping[str, Any]],
    answers: Iterable[Streamed],
) -> Joined:
    role = node.partition("-")[0]
    given = [d["at"] for d in decisions if d["kind"] == role and d["engine"][0] == node]
    # The first token is the prefill node's; from the second on they are the decode node's.
    place = 0 if role == "prefill" else 1
    came = [a.at[place] for a in answers if a.explain[f"{role}_node"] == node]
    return Joined(node, registered, min(given, default=None), min(came, default=None))


def wrong(running: Cluster, answers: Iterable[Streamed]) -> int:
    """Answers that are not what the synthetic engine's arithmetic says."""
    spec = load_spec(load_settings(running.home.settings_file))
    sampling = Sampling(max_tokens=ANSWER_TOKENS, seed=0)
    return sum(
        reference_tokens(spec, list(answer.prompt), ANSWER_TOKENS, sampling) != list(answer.tokens)
        for answer in answers
    )


async def run(running: Cluster, args: argparse.Namespace) -> bool:
    async with Clients(running) as clients:
        await asyncio.sleep(1.0)
        rounds = [await round_of(running, args.stay) for _ in range(args.rounds)]
    answers = clients.answers
    times = registrations(running.traces("scheduler"))
    good = True
    for left, decisions in rounds:
        for node, seconds in left.items():
            found = joined(node, times[node], decisions, answers)
            print(f"{found}; left {seconds * 1e3:5.0f} ms after `scale` was called")
            good &= found.in_time
    again = sum(answer.explain["attempts"] != 1 for answer in answers)
    not_right = wrong(running, answers)
    print(
        f"{len(answers)} answers of {ANSWER_TOKENS} tokens, {len(clients.failures)} failed, {again} needed a second "
        f"attempt, {not_right} differ from the reference"
    )
    for failure in clients.failures[:5]:
        print(f"  {failure}")
    return good and not clients.failures and not again and not not_right


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of joining and leaving")
    parser.add_argument("--stay", type=float, default=4.0, help="seconds that nodes stay")
    args = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        running = Cluster(Path(directory), SETTINGS)
        try:
            good = asyncio.run(run(running, args))
        finally:
            running.close()
    print(f"measured: {machine()}; {'as wanted' if good else 'NOT as wanted'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
