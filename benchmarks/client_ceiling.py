"""How much `dualpath replay` can ask for before its own lag would show in what it measures.

A server in a process of its own answers at once and costs as little as it can: prepared bytes, no parsing of bodies.
Against it the real replay runs open loops that grow step by step, each until the client's lag (the 99th percentile
of how late its event loop is, and of how late requests are sent) exceeds the limit in two of three tries:

- `requests`: agents of one turn and one token, R a second.
- `streams`: so many answers under way at once, each with a token every 50 ms (the paper's TPOT limit).

And, as the reference, the same number of answers of many tokens that come as fast as the client takes them, read by
the replay's own reader and by `httpx`: tokens a second of one process.

    python -m benchmarks.client_ceiling
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection as Pipe
from statistics import median

import httpx
import uvloop
from benchmarks.local import machine

from dualpath.loadgen.replay import LAG_LIMIT_S, OpenLoop, ReplayResult, Target, replay
from dualpath.loadgen.replay.pool import Pool
from dualpath.loadgen.replay.stream import AnswerStream
from dualpath.loadgen.traces import Trace, Trajectory, Turn

TOKEN_EVERY_S = 0.05
PROMPT_TOKENS = 64
STREAM_TOKENS = 60
"""3 s of an answer."""
READ_TOKENS = 20_000
TRIES = 3


# ── the server ─────────────────────────────────────────────────────────────────────────────────────
def event(body: str) -> bytes:
    data = f"data: {body}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHOICE = (
    '{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1,"model":"m",'
    '"choices":[{"index":0,"text":" word","token_ids":[1234],"logprobs":null,"finish_reason":%s}]}'
)
TOKEN = event(_CHOICE % "null")
LAST = event(_CHOICE % '"length"')


def ending(prompt: int, generated: int) -> bytes:
    usage = '{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (  # noqa: UP031
        prompt,
        generated,
    )
    return LAST + event(usage) + event("[DONE]") + b"0\r\n\r\n"


class Answers(asyncio.Protocol):
    """One connection. The first letter of the path's last part says how: `p`aced, or at `o`nce."""

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
        if len(rest) < length:
            return
        self._received = b""
        self._answer(head, rest)

    def _answer(self, head: bytes, body: bytes) -> None:
        write = self.transport.write  # type: ignore[attr-defined]
        if b'"stream":true' not in body:
            whole = b'{"data":[{"id":"m"}],"choices":[{"token_ids":[1]}]}'
            write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), whole))
            return
        count = int(body.partition(b'"max_tokens":')[2].split(b",")[0])
        last = ending(PROMPT_TOKENS, count)
        if count == STREAM_TOKENS:
            write(HEAD + TOKEN)
            self._ticks.add(write, count - 2, last)
        else:
            write(HEAD + TOKEN * (count - 1) + last)


class Ticks:
    """A token for every paced stream, each in its own twentieth of the interval."""

    def __init__(self) -> None:
        self._slots: list[list[tuple[Callable[[bytes], None], int, bytes]]] = [
            [] for _ in range(20)
        ]
        self._now = 0

    def add(self, write: Callable[[bytes], None], tokens: int, last: bytes) -> None:
        self._slots[self._now - 1].append((write, tokens, last))

    async def run(self) -> None:
        due_s = time.monotonic()
        while True:
            due_s += TOKEN_EVERY_S / len(self._slots)
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
            self._now = (self._now + 1) % len(self._slots)
            kept = []
            for write, left, last in self._slots[self._now]:
                if left:
                    write(TOKEN)
                    kept.append((write, left - 1, last))
                else:
                    write(last)
            self._slots[self._now] = kept


async def _serve(pipe: Pipe) -> None:
    ticks = Ticks()
    server = await asyncio.get_running_loop().create_server(
        lambda: Answers(ticks), "127.0.0.1", 0, backlog=4096
    )
    pipe.send(server.sockets[0].getsockname()[1])
    await ticks.run()


def _server_process(pipe: Pipe) -> None:
    uvloop.run(_serve(pipe))


@contextmanager
def server() -> Iterator[str]:
    """The address of a server in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_server_process, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


# ── the client ─────────────────────────────────────────────────────────────────────────────────────
def agents(count: int, tokens: int) -> Trace:
    turns = (Turn(PROMPT_TOKENS, tokens),)
    return Trace("ceiling", tuple(Trajectory(str(n), turns, n) for n in range(count)))


async def at_rate(url: str, rate: float, seconds: float, tokens: int) -> ReplayResult:
    """An open loop of one-turn agents."""
    count = max(round(rate * seconds), 1)
    target = Target(url, max_connections=1 << 15)
    return await replay(agents(count, tokens), target, OpenLoop(rate, count, seed=1))


Run = Callable[[float], Awaitable[ReplayResult]]


async def climb(run: Run, first: float, growth: float, unit: str, scale: float = 1.0) -> float:
    """The last rate, growing by `growth`, at which the client kept its limit; told in `unit`, `scale` of a rate's."""
    good, rate = 0.0, first
    while True:
        lags_s, cpu = [], []
        for _ in range(TRIES):
            result = await run(rate)
            if result.errors:
                raise RuntimeError(f"at {rate:g}/s: {result.warnings}")
            lags_s.append(max(result.lag.loop_s.p(99), result.lag.send_s.p(99)))
            cpu.append(result.lag.cpu)
        lag_s = median(lags_s)
        print(
            f"  {rate * scale:8.0f} {unit}: lag {lag_s * 1e3:6.2f} ms, {median(cpu):.2f} cores",
            flush=True,
        )
        if lag_s > LAG_LIMIT_S:
            return good
        good, rate = rate, rate * growth


@asynccontextmanager
async def own_reader(url: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    pool = Pool(Target(url))

    async def read() -> int:
        answer = AnswerStream()
        body = b'{"stream":true,"max_tokens":%d,"x":0}' % READ_TOKENS
        async with pool.connection() as connection:
            await connection.stream(pool.request("POST", "/completions", body), answer)
        answer.check_whole()
        return len(answer.token_ids)

    yield read
    await pool.close()


@asynccontextmanager
async def httpx_reader(url: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def read() -> int:
            count = 0
            body = b'{"stream":true,"max_tokens":%d,"x":0}' % READ_TOKENS
            async with client.stream("POST", f"{url}/completions", content=body) as response:
                async for line in response.aiter_lines():
                    count += '"token_ids"' in line
            return count

        yield read


async def tokens_per_s(url: str, rounds: int) -> dict[str, float]:
    """Medians of both readers, in turns. httpx only finds the tokens, the replay's reader decodes every event."""
    found: dict[str, list[float]] = {"replay": [], "httpx": []}
    async with own_reader(url) as own, httpx_reader(url) as other:
        for _ in range(rounds):
            for name, read in (("replay", own), ("httpx", other)):
                began_s = time.process_time()
                count = await read()
                if count != READ_TOKENS:
                    raise RuntimeError(f"{name} read {count} of {READ_TOKENS} tokens")
                found[name].append(count / (time.process_time() - began_s))
    return {name: median(rates) for name, rates in found.items()}


async def measure(url: str, seconds: float, growth: float, only: str) -> None:
    if only in ("all", "read"):
        rates = await tokens_per_s(url, 5)
        print(
            f"tokens per second of CPU: {rates['replay']:,.0f} by the replay's reader, "
            f"{rates['httpx']:,.0f} by httpx: {rates['replay'] / rates['httpx']:.1f} times"
        )
    if only in ("all", "requests"):
        print("requests of one token:")
        best = await climb(lambda rate: at_rate(url, rate, seconds, 1), 500, growth, "requests/s")
        print(f"ceiling: {best:,.0f} requests/s")
    if only in ("all", "streams"):
        answer_s = STREAM_TOKENS * TOKEN_EVERY_S
        print(f"streams of a token every {TOKEN_EVERY_S * 1e3:g} ms:")
        best = await climb(
            lambda rate: at_rate(url, rate, seconds + 2 * answer_s, STREAM_TOKENS),
            200 / answer_s,
            growth,
            "streams at once",
            answer_s,
        )
        print(
            f"ceiling: {best * answer_s:,.0f} streams at once, {best * STREAM_TOKENS:,.0f} tokens/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each try")
    parser.add_argument("--growth", type=float, default=1.25, help="from one rate to the next")
    parser.add_argument("--only", choices=("all", "read", "requests", "streams"), default="all")
    options = parser.parse_args()
    print(f"{machine()}; limit {LAG_LIMIT_S * 1e3:g} ms, medians of {TRIES} tries")
    with server() as url:
        uvloop.run(measure(url, options.seconds, options.growth, options.only))


if __name__ == "__main__":
    main()
