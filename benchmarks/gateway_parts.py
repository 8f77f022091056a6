"""The processes around a gateway that is measured: the gateway itself, an engine that costs nothing, a server that
only answers. Each says its port on stdout, and ends with its stdin. See `gateway.py`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from dualpath.bus import Bus
from dualpath.gateway import GatewayService
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.settings import Settings, SyntheticProfile
from dualpath.telemetry.logs import configure_logging
from dualpath.telemetry.process import keep_pauses_short
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import AttemptStats, Sampled

NODE = "zero"
LONG_CONTEXT = 1 << 18
_LAG_S = 0.001


# ── the gateway ────────────────────────────────────────────────────────────────────────────────────
class Lag:
    """How late the event loop is: what an answer waits for whatever else the gateway does."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + _LAG_S
            await asyncio.sleep(_LAG_S)
            self._late.append(time.perf_counter() - due)

    def take(self) -> dict[str, float]:
        late, self._late = sorted(self._late), []
        if not late:
            return {"p99_s": 0.0, "max_s": 0.0}
        return {"p99_s": late[int(0.99 * (len(late) - 1))], "max_s": late[-1]}


async def gateway(args: argparse.Namespace) -> None:
    """Answers each line on stdin with the lag since the last one."""
    settings = Settings(
        model="synthetic",
        home=Path(args.home),
        secret="benchmark",
        synthetic=SyntheticProfile(max_context=LONG_CONTEXT),
    )
    prepare_model(settings, lambda line: None)
    bus = await Bus.connect(args.nats, "gateway-0")
    service = GatewayService(settings, load_spec(settings), bus, "gateway-0")
    port = await service.start(0)
    while not service.healthy()[0]:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.01)
    keep_pauses_short()
    lag, watching = Lag(), list[asyncio.Task[None]]()
    _say({"port": port})
    async for _ in _lines():
        # Not before it is asked for: a thousand looks a second cost as much as some streams.
        watching = watching or [asyncio.create_task(lag.watch())]
        _say(lag.take())
    for task in watching:
        task.cancel()
    await service.close()
    await bus.close()


# ── the engine ─────────────────────────────────────────────────────────────────────────────────────
@dataclass
class _Stream:
    submit: control.Submit
    said: int = 0


class ZeroEngine:
    """A scheduler and a node without work: the first token leaves at once. With `priority` r the others follow r
    times a second, those of all streams in one message as a decode node has it; without, all come with the first."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._streams: dict[str, _Stream] = {}
        self._known: set[str] = set()

    async def on_scheduler(self, message: Message) -> Message | None:
        match message:
            case control.RegisterGateway():
                return control.Registered("zero")
            case control.Submit() if message.attempt.request_id not in self._known:
                self._known.add(message.attempt.request_id)
                stream = self._streams[message.attempt.request_id] = _Stream(message)
                count = 1 if message.priority else message.sampling.max_tokens
                await self._send(message.gateway_id, [self._event(stream, count)])
            case control.CancelRequest():
                self._streams.pop(message.attempt.request_id, None)
        return control.Ok()

    async def on_node(self, message: Message) -> Message | None:
        return None

    async def run(self) -> None:
        """One token of each paced stream, again and again."""
        step, began = 0, time.monotonic()
        while True:
            paced = list(self._streams.values())
            if not paced:
                await asyncio.sleep(0.005)
                step, began = 0, time.monotonic()
                continue
            step += 1
            due = began + step / paced[0].submit.priority
            await asyncio.sleep(max(due - time.monotonic(), 0))
            events = [self._event(stream, 1) for stream in paced]
            for at in range(0, len(events), 256):
                await self._send(paced[0].submit.gateway_id, events[at : at + 256])

    def _event(self, stream: _Stream, count: int) -> control.TokenEvent:
        submit, index = stream.submit, stream.said
        stream.said += count
        done = stream.said >= submit.sampling.max_tokens
        if done:
            self._streams.pop(submit.attempt.request_id, None)
        tokens = tuple(Sampled(97 + (index + n) % 26) for n in range(count))
        stats = AttemptStats() if done or not index else None
        return control.TokenEvent(submit.attempt, index, tokens, "length" if done else None, stats)

    async def _send(self, gateway_id: str, events: list[control.TokenEvent]) -> None:
        message = control.TokenEvents(NODE, tuple(events))
        await self._bus.publish(control.gateway_subject(gateway_id), message)


async def engine(args: argparse.Namespace) -> None:
    bus = await Bus.connect(args.nats, NODE)
    zero = ZeroEngine(bus)
    await bus.serve(control.SCHEDULER, control.to_scheduler, zero.on_scheduler)
    await bus.serve(control.node_subject(NODE), control.to_node, zero.on_node)
    running = asyncio.create_task(zero.run())
    _say({"port": 0})
    async for _ in _lines():
        pass
    running.cancel()
    await bus.close()


# ── the reference ──────────────────────────────────────────────────────────────────────────────────
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b'22\r\ndata: {"choices":[{"text":"a"}]}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n'
)


async def reference(args: argparse.Namespace) -> None:
    """Reads a request and answers at once: what loopback, an event loop and the client cost."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                await reader.readexactly(length)
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    _say({"port": server.sockets[0].getsockname()[1]})
    async for _ in _lines():
        pass
    server.close()


# ── processes ──────────────────────────────────────────────────────────────────────────────────────
def _say(words: object) -> None:
    print(json.dumps(words), flush=True)


async def _lines() -> AsyncIterator[bytes]:
    """Of stdin, until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        yield line


PARTS = {"gateway": gateway, "engine": engine, "reference": reference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--nats", default="")
    parser.add_argument("--home", default="")
    args = parser.parse_args()
    configure_logging(args.part, fmt="console", level="error")
    uvloop.run(PARTS[args.part](args))


if __name__ == "__main__":
    main()
