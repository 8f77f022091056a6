"""What a gateway and the bus cost, with an engine that costs nothing behind them.

    python -m benchmarks.gateway [--requests 300] [--streams 10,100,1000] [--seconds 5] [--parts ttft,long]

Processes of their own: NATS, the gateway (a real one over HTTP), an engine without work (`gateway_parts.py`; it
answers as scheduler and node do), and this one, the clients. The tokenizer takes bytes for tokens. Measured are

    ttft        from sending a request of 128 tokens to its first event, one at a time, alternately with a server
                that only answers; added are the differences of the percentiles
    requests    closed loop of 32 connections, one token each: per second, and per CPU second of the gateway, which
                is what one core would do
    streams     10, 100, 1,000 at 10 tokens/s each: time to first token, gaps between tokens, the gateway's CPU time
                per 1,000 tokens (and so, how many streams one core would carry), its memory
    long        20 streams at 50 tokens/s while prompts of 200,000 tokens come, against the same without them: how
                late the gateway's event loop is. Wanted: 20 ms at most
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from benchmarks.local import machine, thread_s, until

from dualpath.cluster.nats_server import find_nats_server
from dualpath.telemetry.leash import leashed

LONG_TOKENS = 200_000
WANTED_LATE_S = 0.020
HOST = "127.0.0.1"
PARTS = ("ttft", "requests", "streams", "long")


# ── processes ──────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Part:
    process: asyncio.subprocess.Process
    port: int

    async def ask(self) -> dict[str, float]:
        """A line in, a line out."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        answer: dict[str, float] = await _heard(self.process)
        return answer


async def _heard(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a part of the benchmark has ended; see above")
    return json.loads(line)


@asynccontextmanager
async def part(name: str, **options: str) -> AsyncIterator[Part]:
    flags = [f"--{key}={text}" for key, text in options.items()]
    command = [sys.executable, "-m", "benchmarks.gateway_parts", name, *flags]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*leashed(command), stdin=pipe, stdout=pipe)
    try:
        yield Part(process, (await _heard(process))["port"])
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def nats(directory: Path) -> AsyncIterator[str]:
    """The server's URL."""
    binary = str(find_nats_server())
    command = [binary, "-a", HOST, "-p", "-1", "--ports_file_dir", str(directory)]
    process = await asyncio.create_subprocess_exec(
        *leashed(command), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        ports = await asyncio.to_thread(until, partial(_written, directory), "the NATS server")
        yield json.loads(ports)["nats"][0]
    finally:
        process.terminate()
        await process.wait()


def _written(directory: Path) -> str:
    return "".join(file.read_text() for file in directory.glob("*.ports"))


# ── clients ────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Answer:
    """When it was asked, and when each event with text came."""

    began_s: float
    events_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.events_s[0] - self.began_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.events_s, self.events_s[1:], strict=False)]


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes) -> Answer:
        """Raises RuntimeError for another status, or a stream that fails."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port)
        reader, writer = self._streams
        head = f"POST /v1/completions HTTP/1.1\r\nhost: b\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = Answer(time.perf_counter())
        writer.write(head.encode() + body)
        line = await reader.readline()
        if b" 200 " not in line:
            raise RuntimeError(f"answered {line!r}: {await reader.read(1000)!r}")
        while (line := await reader.readline()) != b"0\r\n":
            if line.startswith(b'data: {"error"') or not line:
                raise RuntimeError(f"the stream failed: {line!r}")
            if line.startswith(b"data: {"):
                answer.events_s.append(time.perf_counter())
        await reader.readline()
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def body(prompt: str | Sequence[int], tokens: int, rate: int = 0) -> bytes:
    """`rate`: see ZeroEngine."""
    asked = {"model": "synthetic", "prompt": prompt, "max_tokens": tokens, "priority": rate}
    asked |= {"stream": True, "ignore_eos": True, "cache_salt": secrets.token_hex(4)}
    return json.dumps(asked).encode()


SOURCE = random.Random(1)


def prompt_ids(count: int = 128) -> list[int]:
    return [SOURCE.randrange(32, 120) for _ in range(count)]


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(round(percent / 100 * (len(ordered) - 1)), len(ordered) - 1)]


# ── measurements ───────────────────────────────────────────────────────────────────────────────────
async def added_ttft(gateway: Part, reference: Part, requests: int) -> None:
    clients = {"reference": Client(reference.port), "gateway": Client(gateway.port)}
    took: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(requests + 20):
        for name, client in clients.items():
            answer = await client.ask(body(prompt_ids(), 1))
            if number >= 20:
                took[name].append(answer.ttft_s)
    for client in clients.values():
        client.close()
    print(f"\nadded TTFT of gateway and bus ({requests} requests, one at a time)")
    for percent in (50, 99):
        floor, whole = (1e3 * percentile(took[name], percent) for name in took)
        print(
            f"  p{percent}: {whole - floor:6.2f} ms (gateway {whole:.2f}, a server that only answers {floor:.2f})"
        )


async def throughput(gateway: Part, seconds: float) -> None:
    clients = [Client(gateway.port) for _ in range(32)]
    ends = time.perf_counter() + seconds
    served = 0

    async def loop(client: Client) -> None:
        nonlocal served
        while time.perf_counter() < ends:
            await client.ask(body(prompt_ids(), 1))
            served += 1

    cpu, began = thread_s(gateway.process.pid), time.perf_counter()
    await asyncio.gather(*map(loop, clients))
    cpu, wall = thread_s(gateway.process.pid) - cpu, time.perf_counter() - began
    for client in clients:
        client.close()
    print(f"\nrequests of 128 tokens, one token each, 32 at a time: {served / wall:,.0f}/s")
    each_ms = 1e3 * cpu / served
    print(
        f"  {served / cpu:,.0f} per CPU second of the gateway ({each_ms:.2f} ms each; it had {cpu / wall:.2f} cores)"
    )


async def streams(gateway: Part, count: int, rate: int, seconds: float) -> list[Answer]:
    clients = [Client(gateway.port) for _ in range(count)]
    tokens = max(round(seconds * rate), 2)
    answers = await asyncio.gather(*(c.ask(body(prompt_ids(), tokens, rate)) for c in clients))
    for client in clients:
        client.close()
    return answers


async def growth(gateway: Part, counts: Sequence[int], seconds: float) -> None:
    rate = 10
    print(f"\nstreams of {rate} tokens/s each, begun at once")
    print(
        "  streams   TTFT p50/p99 ms   gap p50/p99 ms   CPU ms per 1,000 tokens   one core carries   RSS MiB"
    )
    for count in counts:
        cpu = thread_s(gateway.process.pid)
        answers = await streams(gateway, count, rate, seconds)
        cpu = thread_s(gateway.process.pid) - cpu
        tokens = sum(len(answer.events_s) - 1 for answer in answers)
        ttft = [1e3 * answer.ttft_s for answer in answers]
        gaps = [1e3 * gap for answer in answers for gap in answer.gaps_s[:-1]]
        print(
            f"  {count:7,}   {percentile(ttft, 50):7.1f} / {percentile(ttft, 99):6.1f}"
            f"   {percentile(gaps, 50):6.1f} / {percentile(gaps, 99):6.1f}"
            f"   {1e6 * cpu / tokens:23.1f}   {tokens / cpu / rate:16,.0f}   {_rss_mib(gateway.process.pid):7.0f}"
        )


def _rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def long_prompts(gateway: Part, seconds: float) -> None:
    words = "".join(f"word{number % 977} and some " for number in range(LONG_TOKENS // 4))
    text = words[:LONG_TOKENS]
    print("\nthe gateway's event loop while 20 streams of 50 tokens/s run")
    late: dict[str, float] = {}
    for name, long in (("nothing else", 0), ("prompts of 200,000 tokens", 4)):
        await gateway.ask()
        running = asyncio.create_task(streams(gateway, 20, 50, seconds))
        await asyncio.sleep(seconds / 5)
        took = []
        for _ in range(long):
            client = Client(gateway.port)
            took.append((await client.ask(body(text, 1))).ttft_s)
            client.close()
        answers = await running
        lag = await gateway.ask()
        late[name] = lag["max_s"]
        gaps = [1e3 * gap for answer in answers for gap in answer.gaps_s[:-1]]
        print(
            f"  {name}: late by {1e3 * lag['p99_s']:.1f} ms p99, {1e3 * lag['max_s']:.1f} ms at most;"
            f" gaps between tokens p99 {percentile(gaps, 99):.1f} ms, at most {max(gaps):.1f} ms"
            + (f"; their own TTFT {1e3 * percentile(took, 50):.0f} ms" if took else "")
        )
    stall = late["prompts of 200,000 tokens"]
    verdict = "as wanted" if stall <= WANTED_LATE_S else "too late, or the machine is busy"
    print(f"  wanted: {1e3 * WANTED_LATE_S:.0f} ms at most; {1e3 * stall:.1f} ms: {verdict}")


async def run(args: argparse.Namespace) -> None:
    print(machine())
    counts = [int(count) for count in args.streams.split(",")]
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = await stack.enter_async_context(nats(directory))
        await stack.enter_async_context(part("engine", nats=url))
        gateway = await stack.enter_async_context(part("gateway", nats=url, home=str(directory)))
        reference = await stack.enter_async_context(part("reference"))
        if "ttft" in args.parts:
            await added_ttft(gateway, reference, args.requests)
        if "requests" in args.parts:
            await throughput(gateway, args.seconds)
        if "streams" in args.parts:
            await growth(gateway, counts, args.seconds)
        if "long" in args.parts:
            await long_prompts(gateway, args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=300, help="of the added TTFT")
    parser.add_argument("--streams", default="10,100,1000", help="how many at a time")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    if strangers := set(args.parts) - set(PARTS):
        parser.error(f"--parts knows {', '.join(PARTS)}, not {', '.join(strangers)}")
    uvloop.run(run(args))


if __name__ == "__main__":
    main()
