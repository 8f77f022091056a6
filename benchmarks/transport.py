"""How fast one-sided writes are, against plain blocking sockets that copy the same bytes in the same run.

    python benchmarks/transport.py [--loops uvloop,asyncio] [--total 1GiB] [--rounds 5]

Two processes over loopback. The reference is the best of several plain copies: one process sends 1 MiB messages
with blocking calls, the other receives them into memory, with various socket buffers. Rounds of all kinds take
turns, so that a busy machine slows all; ratio is that of the medians.

Where the scheduler puts the two processes decides more than anything else: all is measured with each on a core of
its own (`apart`, as nodes are), and with both on one core (`together`: what is sent is still in that core's cache
when it is received, and the two never work at the same time). Kinds of writes:

    1 MiB                   from one piece of memory into one, 4 under way at a time
    1 MiB in 48 KiB pieces  gathered from pieces that lie apart, scattered into pieces that lie apart
    48 KiB, 4 KiB           each a write of its own with its own acknowledgement: the cost of a work request

`tcp` is all through the socket; `shared` leaves the payload in memory of the writer's, out of which the target,
on the same host, copies it.

`wanted` is judged apart. CPU is that of both processes together, in seconds per GB and in microseconds per write.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from dualpath.cluster.certificate import make_certificate
from dualpath.cluster.home import Home
from dualpath.lanes import PacedNic
from dualpath.memory.shared import SharedMemory
from dualpath.settings import Settings
from dualpath.settings.units import parse_bytes
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.samehost import SameHostEndpoint
from dualpath.transport.sockets import CONGESTION_CONTROL
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls
from dualpath.wire.types import Address

SECRET = b"benchmark"
REGION_WRITES = 4
"""The target memory is so many writes long, for all: KV does not stay in a core's cache either."""
MIB = 1 << 20
GAP_BYTES = 4096
"""Between pieces that lie apart."""
PLACEMENTS = ("apart", "together")
PLAIN_BUFFERS = (4 * MIB, MIB, 0)
"""Socket buffers of the plain copies; 0: what the kernel chooses."""


@dataclass(frozen=True)
class Kind:
    """One kind of writes; `piece_bytes` 0: in one piece."""

    name: str
    write_bytes: int
    piece_bytes: int = 0
    concurrent: int = 4
    transport: str = "tcp"
    wanted: float = 0.0
    """Of the reference's rate; 0: nothing is wanted."""


KINDS = (
    Kind("1 MiB", MIB, wanted=0.8),
    Kind("1 MiB in 48 KiB pieces", MIB, 48 << 10, wanted=0.6),
    Kind("48 KiB", 48 << 10, concurrent=16),
    Kind("4 KiB", 4 << 10, concurrent=16),
)


class Memory:
    """`nbytes` as a region, in pieces of `piece_bytes` that lie apart, or in one."""

    def __init__(self, nbytes: int, piece_bytes: int, *, shared: bool = False) -> None:
        self.nbytes = nbytes
        self.writes = 0
        self._piece_bytes = piece_bytes or nbytes
        count = -(-nbytes // self._piece_bytes)
        self._stride = self._piece_bytes + (GAP_BYTES if piece_bytes else 0)
        size = count * self._stride
        self.shared = SharedMemory("benchmark", size) if shared else None
        self.view = self.shared.view if self.shared else memoryview(mmap.mmap(-1, size))
        for start in range(0, len(self.view), mmap.PAGESIZE):
            self.view[start] = 1  # So that pages are there before anything is timed.

    def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
        pieces, end = [], offset + nbytes
        while offset < end:
            number, within = divmod(offset, self._piece_bytes)
            size = min(self._piece_bytes - within, end - offset)
            start = number * self._stride + within
            pieces.append(self.view[start : start + size])
            offset += size
        return pieces

    def on_write(self, imm: int) -> None:
        self.writes += 1


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        async def main() -> None:
            await work()

        runner.run(main())


# ── the reference ──────────────────────────────────────────────────────────────────────────────────
def plain_receiver(
    pipe: Connection, nbytes: int, spread: int, buffer_bytes: int, tuned: bool
) -> None:
    """Receive `nbytes` messages into memory of `spread` messages; answer each order with a byte at its end."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    sock, _ = listener.accept()
    if tuned:
        tune(sock, buffer_bytes)
    (memory,) = Memory(nbytes * spread, 0).resolve(0, nbytes * spread)
    while (count := pipe.recv()) is not None:
        before = cpu_s()
        for number in range(count):
            start = number % spread * nbytes
            left = memory[start : start + nbytes]
            while left:
                left = left[sock.recv_into(left) :]
        sock.sendall(b"!")
        pipe.send(cpu_s() - before)


@contextmanager
def placed(receiver: int, placement: str) -> Iterator[None]:
    """Meanwhile this process, which sends, and process `receiver` each have a core of their own, or one together."""
    able = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(receiver, {able[-1 if placement == "apart" else 0]})
    os.sched_setaffinity(0, {able[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, able)


def tune(sock: socket.socket, buffer_bytes: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


class Plain:
    """A plain copy between two processes. `round` gives seconds and CPU seconds."""

    def __init__(
        self,
        nbytes: int = MIB,
        buffer_bytes: int = 4 * MIB,
        spread: tuple[int, int] = (1, REGION_WRITES),
        *,
        tuned: bool = True,
    ) -> None:
        """`spread`: the memory that is read, and that is written to, in messages. Not `tuned`: with the options that
        a socket has of itself on this machine, its congestion control among them."""
        self.name = f"plain, buffers {buffer_bytes >> 20 or 'of the kernel'}"
        self.name += " MiB" if buffer_bytes else ""
        self.write_bytes = nbytes
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.Process(
            target=plain_receiver, args=(other, nbytes, spread[1], buffer_bytes, tuned)
        )
        self._process.start()
        self._sock = socket.socket()
        if tuned:
            tune(self._sock, buffer_bytes)  # First: one that began with bbr stays paced by timers.
        self._sock.connect(("127.0.0.1", self._pipe.recv()))
        memory = Memory(nbytes * spread[0], 0)
        self._messages = [memory.resolve(n * nbytes, nbytes)[0] for n in range(spread[0])]

    def round(self, count: int) -> tuple[float, float]:
        self._pipe.send(count)
        before, began = cpu_s(), time.perf_counter()
        for number in range(count):
            self._sock.sendall(self._messages[number % len(self._messages)])
        self._sock.recv(1)
        took, cpu = time.perf_counter() - began, cpu_s() - before
        return took, cpu + self._pipe.recv()

    @property
    def receiver(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


# ── one-sided writes ───────────────────────────────────────────────────────────────────────────────
async def ignore(peer: Address, message: bytes) -> None:
    """A handler that takes everything."""


def make_endpoint(name: str, transport: str) -> TcpEndpoint:
    kinds: dict[str, type[TcpEndpoint]] = {"rdma": RdmaEndpoint, "shared": SameHostEndpoint}
    kind = kinds.get(transport, TcpEndpoint)
    tls = encryption() if transport == "tls" else None
    return kind(name, host="127.0.0.1", nic=PacedNic(name), secret=SECRET, tls=tls)


@cache
def encryption() -> Tls | None:
    """As `dualpath up --tls` makes it."""
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory))
        home.create()
        return Tls.of(make_certificate(home, Settings()))


def endpoint_receiver(pipe: Connection, kind: Kind, loop: str) -> None:
    async def work() -> None:
        endpoint = make_endpoint("receiver", kind.transport)
        await endpoint.start(ignore)
        memory = Memory(kind.write_bytes * REGION_WRITES, kind.piece_bytes)
        endpoint.pin(memory.view)
        address = endpoint.address
        pipe.send((address.incarnation, address.port, endpoint.register(memory)))
        running = asyncio.get_running_loop()
        while (count := await running.run_in_executor(None, pipe.recv)) is not None:
            before = cpu_s()
            pipe.send(None)
            await running.run_in_executor(None, pipe.recv)
            assert memory.writes == count, f"{memory.writes} of {count} writes have landed"
            memory.writes = 0
            pipe.send(cpu_s() - before)
        await endpoint.close()

    run(loop, work)


class Writes:
    """Writes of one kind on one event loop. `round` gives seconds and CPU seconds."""

    def __init__(self, kind: Kind, loop: str) -> None:
        self.name = f"{kind.transport}, {kind.name}, {loop}"
        self.kind, self.loop = kind, loop
        self.write_bytes = kind.write_bytes
        self._pipe, other = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=endpoint_receiver, args=(other, kind, loop))
        self._process.start()
        incarnation, port, self._key = self._pipe.recv()
        self._peer = Address("receiver", incarnation, "127.0.0.1", port)
        self._memory = Memory(kind.write_bytes, kind.piece_bytes, shared=kind.transport == "shared")
        self._source = self._memory.resolve(0, kind.write_bytes)

    def round(self, count: int) -> tuple[float, float]:
        result = (0.0, 0.0)

        async def work() -> None:
            nonlocal result
            endpoint = make_endpoint("sender", self.kind.transport)
            endpoint.pin(self._memory.view, self._memory.shared)
            await endpoint.start(ignore)
            await endpoint.send(self._peer, b"hello")
            numbers = iter(range(count))

            async def write() -> None:
                for number in numbers:
                    offset = number % REGION_WRITES * self.write_bytes
                    await endpoint.write(self._peer, self._key, offset, self._source)

            self._pipe.send(count)
            self._pipe.recv()
            before, began = cpu_s(), time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.kind.concurrent):
                    group.create_task(write())
            result = (time.perf_counter() - began, cpu_s() - before)
            self._pipe.send(None)
            await endpoint.close()

        run(self.loop, work)
        took, cpu = result
        return took, cpu + self._pipe.recv()

    @property
    def receiver(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


# ── rounds and report ──────────────────────────────────────────────────────────────────────────────
@dataclass
class Figures:
    """Of all rounds of one way at one placement: GB/s, CPU seconds per GB."""

    way: Plain | Writes
    placement: str
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def measure(self, total_bytes: int) -> None:
        count = max(total_bytes // self.way.write_bytes, 1)
        gb = count * self.way.write_bytes / 1e9
        with placed(self.way.receiver, self.placement):
            took, cpu = self.way.round(count)
        self.rates.append(gb / took)
        self.costs.append(cpu / gb)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def line(self, reference: float) -> str:
        cost, gb = statistics.median(self.costs), self.way.write_bytes / 1e9
        text = (
            f"{self.way.name:36} {self.rate:5.2f} GB/s ({min(self.rates):.2f} to {max(self.rates):.2f})"
            f"   {cost:6.3f} CPU s/GB   {gb / self.rate * 1e6:6.1f} us, {cost * gb * 1e6:6.1f} CPU us each"
        )
        if isinstance(self.way, Plain):
            return text
        ratio = self.rate / reference
        wanted = self.way.kind.wanted if self.placement == "apart" else 0.0
        verdict = "" if not wanted else "   good" if ratio >= wanted else f"   wanted: {wanted:g}"
        return f"{text}   ratio {ratio:.2f}{verdict}"


def report(figures: Sequence[Figures]) -> None:
    """Of one placement."""
    best = max((f for f in figures if isinstance(f.way, Plain)), key=lambda f: f.rate)
    print(f"\n{best.placement}: medians; ratio to the best plain copy ({best.way.name})")
    for each in figures:
        print(each.line(best.rate))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--total", type=parse_bytes, default=1 << 29, help="per round and kind")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loops", default="uvloop,asyncio", help="event loops, with commas")
    parser.add_argument(
        "--transports",
        default="tcp,shared",
        help="of tcp, shared (memory), tls and rdma (NIXL), with commas",
    )
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="only the first so many")
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="warning")
    # Before there are processes, so that all have it.
    encryption()
    ways: list[Plain | Writes] = [Plain(buffer_bytes=size) for size in PLAIN_BUFFERS]
    ways += [
        Writes(
            replace(kind, transport=transport, wanted=0 if transport == "tls" else kind.wanted),
            loop,
        )
        for loop in args.loops.split(",")
        for kind in KINDS[: args.kinds]
        for transport in args.transports.split(",")
    ]
    figures = {place: [Figures(way, place) for way in ways] for place in PLACEMENTS}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for number in range(args.rounds):
        for each in chain.from_iterable(figures.values()):
            # Small writes cost most of their time in requests, and need fewer bytes to tell.
            each.measure(args.total * min(each.way.write_bytes, MIB) // MIB)
        print(f"round {number + 1} of {args.rounds}", flush=True)
    for way in ways:
        way.close()
    for of_one_placement in figures.values():
        report(of_one_placement)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
