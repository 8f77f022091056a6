"""Clients that go away, at every moment, and what other servers got wrong then: whatever was held is free at once,
work stops, and nobody else notices. Numbers are those of the kinds of faults in reports on such servers."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.client import complete, oracle, prompt, spec_of
from tests.support.cluster import LocalCluster

BLOCK_BYTES = 64 * 8 * 256
NEVER_ENDS = 1000
"""Tokens: more than a test waits for, as a step takes 10 ms."""
SHAPE: dict[str, Any] = {
    "shards": 1,
    "max_context": 5120,
    "chunk_tokens": 256,
    "prefill_buffer": 80 * BLOCK_BYTES,
    "decode_buffer": 136 * BLOCK_BYTES,
    "write_back_blocks": 8,
    "prefill_hbm": 80 * BLOCK_BYTES,
    "decode_hbm": 128 * BLOCK_BYTES,
    "cnic_bandwidth": "40MB/s",
    "snic_bandwidth": "20MB/s",
    "synthetic": {"decode_step_s": 0.01, "token_s": 1e-4},
}
"""Room for two requests of 3,000 tokens; prefilling one takes 0.3 s, moving its KV 0.15 s."""


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster) -> LocalCluster:
    return start_cluster(**SHAPE)


@pytest.fixture(scope="module")
def frail(start_cluster: StartCluster) -> LocalCluster:
    """A cluster that tries once, and takes silence for loss soon. Its prefills take long enough to be met."""
    slow = SHAPE["synthetic"] | {"token_s": 5e-4}
    shape = SHAPE | {"synthetic": slow}
    return start_cluster(**shape, max_attempts=1, transfer_deadline_s=1.0, node_lost_s=1.0)


@asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        yield http


class Asked:
    """A request under way."""

    def __init__(
        self, http: httpx.AsyncClient, cluster: LocalCluster, ids: list[int], **more: Any
    ) -> None:
        self.tokens: list[int] = []
        self.events: list[dict[str, Any]] = []
        self.first = asyncio.Event()
        self.status = 0
        body = {
            "model": cluster.model, "prompt": ids, "max_tokens": NEVER_ENDS, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "stream": True,
        }  # fmt: skip
        self._task = asyncio.create_task(self._read(http, cluster.base_url, body | more))

    async def _read(self, http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
        async with http.stream("POST", f"{url}/completions", json=body) as response:
            self.status = response.status_code
            async for line in response.aiter_lines():
                if line.startswith("data: {") or (line and not line.startswith("data: ")):
                    self.events.append(json.loads(line.removeprefix("data: ")))
                    for choice in self.events[-1].get("choices", ()):
                        self.tokens += choice.get("token_ids", ())
                    self.first.set()

    async def until_tokens(self, count: int) -> None:
        while len(self.tokens) < count:
            assert not self._task.done(), (self.status, self.events)
            await asyncio.sleep(0.002)

    async def leave(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> list[dict[str, Any]]:
        """Wait for the answer's end; all events of a stream."""
        await asyncio.wait_for(self._task, 60)
        return self.events


async def idle(cluster: LocalCluster) -> None:
    await asyncio.to_thread(cluster.until_idle)


async def held(cluster: LocalCluster) -> dict[str, int]:
    return await asyncio.to_thread(cluster.in_use)


async def until_held(cluster: LocalCluster, name: str, *, less_than: int | None = None) -> None:
    """Wait until a pool or queue is used; with `less_than`, until less of it is."""
    deadline = time.monotonic() + 60
    while True:
        used = (await held(cluster)).get(name, 0)
        if used < less_than if less_than is not None else used:
            return
        assert time.monotonic() < deadline, f"{name}: {used}"


async def met_in_prefill(http: httpx.AsyncClient, cluster: LocalCluster, seed: int) -> Asked:
    """A request whose prefill is under way. A machine may look too late for one: then it is another's."""
    for other in range(5):
        asked = Asked(http, cluster, prompt(3500, seed + 1000 * other))
        while not asked.first.is_set():
            used = await held(cluster)
            if used.get("prefill-0.prefill_hbm_bytes_0") and not asked.first.is_set():
                return asked
        await asked.leave()
        await idle(cluster)
    raise AssertionError("no prefill was met")


async def counter(cluster: LocalCluster, node: str, name: str) -> int:
    """As the node itself has it: what the scheduler knows of it is a moment old."""
    status = await asyncio.to_thread(cluster.status)
    return status.processes[node].counters[name]


async def check_serves(http: httpx.AsyncClient, cluster: LocalCluster, seed: int) -> None:
    """A normal request is served as if nothing had been."""
    ids = prompt(200, seed)
    assert (await complete(http, cluster, ids, 5)).ids == oracle(spec_of(cluster), ids, 5)
    await idle(cluster)


async def test_01_aborted_in_the_decode_queue_nothing_is_stranded(cluster: LocalCluster) -> None:
    async with client() as http:
        running = [Asked(http, cluster, prompt(3000, seed)) for seed in (1, 2)]
        for asked in running:
            await asked.until_tokens(1)
        waiting = Asked(http, cluster, prompt(3000, 3))
        await until_held(cluster, "scheduler.queued")
        await waiting.leave()
        await until_held(cluster, "scheduler.queued", less_than=1)
        for asked in running:
            await asked.leave()
        await idle(cluster)
        await check_serves(http, cluster, 4)


@pytest.mark.slow
async def test_02_aborted_while_the_peer_says_nothing_slots_are_freed_by_fencing(
    frail: LocalCluster,
) -> None:
    """The prefill node stands still in mid-transfer: its last word never comes."""
    async with client() as http:
        asked = await met_in_prefill(http, frail, 11)
        frail.kill("prefill-0", signal.SIGSTOP)
        try:
            await asked.leave()
            await until_held(frail, "decode-0.decode-0.buffer", less_than=1)
        finally:
            frail.kill("prefill-0", signal.SIGCONT)
        await idle(frail)
        await until_served(http, frail, 12)


@pytest.mark.slow
async def test_03_aborted_after_pre_emption_all_is_free(cluster: LocalCluster) -> None:
    async with client() as http:
        lost = await counter(cluster, "decode-0", "steps")
        asked = [
            Asked(http, cluster, prompt(1900, 20 + seed), max_tokens=2000) for seed in range(4)
        ]
        for each in asked[:3]:
            await each.until_tokens(1)
        # They outgrow the HBM together: somebody is pre-empted, and comes back.
        await until_preempted(cluster)
        for each in asked:
            await each.leave()
        await idle(cluster)
        assert await counter(cluster, "decode-0", "steps") > lost
        await check_serves(http, cluster, 25)


async def test_04_aborted_at_the_last_token_the_write_back_ends(cluster: LocalCluster) -> None:
    async with client() as http:
        for seed in range(3):
            asked = Asked(http, cluster, prompt(2500, 30 + seed), max_tokens=70)
            await asked.until_tokens(69)
            await asked.leave()
        await idle(cluster)
        await check_serves(http, cluster, 35)


async def test_05_hundreds_that_leave_in_mid_transfer_wedge_nobody(cluster: LocalCluster) -> None:
    source = random.Random(5)
    async with client() as http:
        warm = prompt(2000, 40)
        await complete(http, cluster, warm, 2)

        async def leave_soon() -> None:
            asked = Asked(http, cluster, [*warm[: source.randrange(300, 2000)], 7])
            await asyncio.sleep(source.random() * 0.8)
            await asked.leave()

        await asyncio.gather(*(leave_soon() for _ in range(200)))
        await idle(cluster)
        assert (await complete(http, cluster, warm, 5)).ids == oracle(spec_of(cluster), warm, 5)


async def test_06_leaving_before_the_first_token_stops_the_prefill(cluster: LocalCluster) -> None:
    async with client() as http:
        # A machine that stands still meanwhile may leave too late, but not each time.
        for seed in range(500, 510, 2):
            before = await counter(cluster, "prefill-0", "forward_tokens")
            asked = Asked(http, cluster, prompt(4000, seed))
            while not asked.first.is_set():
                if (await held(cluster)).get("prefill-0.prefill_hbm_bytes_0"):
                    break
            await asked.leave()
            await check_serves(http, cluster, seed + 1)
            computed = await counter(cluster, "prefill-0", "forward_tokens") - before - 200
            if computed < 4000 and not asked.tokens:
                return
        raise AssertionError(f"{computed} tokens were computed, {len(asked.tokens)} came")


async def test_07_leaving_ends_a_request_that_does_not_stream(cluster: LocalCluster) -> None:
    async with client() as http:
        asked = Asked(http, cluster, prompt(100, 60), stream=False)
        await until_held(cluster, "decode-0.decode_hbm_tokens_0")
        await asked.leave()
        await idle(cluster)
        steps = await counter(cluster, "decode-0", "steps")
        await check_serves(http, cluster, 61)
        assert await counter(cluster, "decode-0", "steps") - steps == 4


async def test_07_decode_stops_within_two_steps_of_a_stop_string(cluster: LocalCluster) -> None:
    """A stop string comes in the middle of a step at the earliest, and is known after its token has travelled. A
    machine that stands still meanwhile makes more of that, but not each time."""
    late: list[int] = []
    async with client() as http:
        for seed in range(620, 625):
            ids = prompt(100, seed)
            tokens = oracle(spec_of(cluster), ids, 30)
            response = await http.post(
                f"{cluster.base_url.removesuffix('/v1')}/detokenize", json={"tokens": [tokens[9]]}
            )
            steps = await counter(cluster, "decode-0", "steps")
            asked = Asked(http, cluster, ids, stop=response.json()["prompt"])
            events = await asked.end()
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
            stop_at = next(n for n, token in enumerate(tokens) if token == tokens[9])
            assert asked.tokens == tokens[: stop_at + 1]
            await idle(cluster)
            late.append(await counter(cluster, "decode-0", "steps") - steps - stop_at)
            if late[-1] <= 2:
                return
    raise AssertionError(f"steps after the stop string, in each try: {late}")


async def test_08_after_a_storm_of_aborts_there_is_full_capacity(cluster: LocalCluster) -> None:
    """300 requests, nine of ten dropped at random moments; the others get their right answers."""
    source = random.Random(8)
    spec = spec_of(cluster)
    async with client() as http:

        async def ask(number: int) -> None:
            await asyncio.sleep(source.random() * 2)
            ids = prompt(source.randrange(10, 400), number)
            if number % 10 == 0:
                assert (await complete(http, cluster, ids, 6)).ids == oracle(spec, ids, 6)
                return
            asked = Asked(http, cluster, ids, stream=number % 2 == 0)
            await asyncio.sleep(source.random())
            await asked.leave()

        await asyncio.gather(*(ask(number) for number in range(300)))
        await idle(cluster)
        await check_serves(http, cluster, 70)


@pytest.mark.slow
async def test_09_a_decode_node_that_cannot_be_reached_holds_no_prefill(
    frail: LocalCluster,
) -> None:
    """It dies with a prefill for it under way: the client hears so, and the prefill side is free at once."""
    async with client() as http:
        await until_served(http, frail, 79)
        asked = await met_in_prefill(http, frail, 80)
        frail.kill("decode-0")
        (answer,) = await asked.end()
        assert (asked.status, "error" in answer) == (503, True)
        await until_held(frail, "prefill-0.prefill_hbm_bytes_0", less_than=1)
        frail.restart("decode-0")
        await until_served(http, frail, 81)


@pytest.mark.slow
@pytest.mark.parametrize("spoken", [False, True])
async def test_10_an_aborted_transfer_is_an_error_and_never_a_finish(
    frail: LocalCluster, spoken: bool
) -> None:
    """A node dies under the request, and there is no other attempt."""
    async with client() as http:
        await until_served(http, frail, 89 + spoken)
        if spoken:
            asked = Asked(http, frail, prompt(3500, 91))
            await asked.until_tokens(2)
        else:
            asked = await met_in_prefill(http, frail, 90)
        victim = "decode-0" if spoken else "prefill-0"
        frail.kill(victim)
        events = await asked.end()
        finishes = [c["finish_reason"] for e in events for c in e.get("choices", ())]
        assert set(finishes) <= {None}
        assert "error" in events[-1]
        assert asked.status == (200 if spoken else 503)
        frail.restart(victim)
        await until_served(http, frail, 92 + spoken)


async def until_served(http: httpx.AsyncClient, cluster: LocalCluster, seed: int) -> None:
    """Wait until a request gets its right answer: a node that was lost may still be coming back."""
    deadline = time.monotonic() + 60
    ids = prompt(200, seed)
    answer, problem = None, ""
    while answer is None:
        assert time.monotonic() < deadline, f"no request was served: {problem}"
        try:
            answer = await complete(http, cluster, ids, 5)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 503:
                raise
            problem = str(error)
            await asyncio.sleep(0.1)
    assert answer.ids == oracle(spec_of(cluster), ids, 5)
    await idle(cluster)


async def until_preempted(cluster: LocalCluster) -> None:
    deadline = time.monotonic() + 30
    port = cluster.http_ports["decode-0"]
    async with httpx.AsyncClient() as http:
        while 'code="preempted"' not in (await http.get(f"http://127.0.0.1:{port}/metrics")).text:
            assert time.monotonic() < deadline, "nobody was pre-empted"
            await asyncio.sleep(0.05)
