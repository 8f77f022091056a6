"""How fast one-sided writes are, against plain blocking sockets that copy the same bytes in the same run.

    python benchmarks/transport.py [--write-bytes 1MiB] [--total 2GiB] [--loop uvloop] [--concurrent 4]

Two processes over loopback. Prints GB/s, CPU seconds per GB of both processes together, and the ratio.
Rounds alternate between the two, so that a busy machine slows both; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection

import uvloop

from dualpath.lanes import PacedNic
from dualpath.settings.units import parse_bytes
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

SECRET = b"benchmark"
REGION_WRITES = 4
"""The target memory is so many writes long, for both: KV does not stay in a core's cache either."""
BUFFER_BYTES = 4 << 20


class Memory:
    """A region that cuts its bytes into pieces of `piece_bytes` (0: one piece)."""

    def __init__(self, nbytes: int, piece_bytes: int) -> None:
        self.view = memoryview(bytearray(nbytes))
        self.piece_bytes = piece_bytes or nbytes
        self.writes = 0

    @property
    def nbytes(self) -> int:
        return len(self.view)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        pieces, end = [], offset + nbytes
        while offset < end:
            stop = min(end, offset - offset % self.piece_bytes + self.piece_bytes)
            pieces.append(self.view[offset:stop])
            offset = stop
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


def plain_receiver(pipe: Connection, nbytes: int) -> None:
    """Receive `nbytes` messages into one buffer; answer each order with a byte at its end."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    sock, _ = listener.accept()
    tune(sock)
    memory = memoryview(bytearray(nbytes * REGION_WRITES))
    while (count := pipe.recv()) is not None:
        before = cpu_s()
        for number in range(count):
            start = number % REGION_WRITES * nbytes
            left = memory[start : start + nbytes]
            while left:
                left = left[sock.recv_into(left) :]
        sock.sendall(b"!")
        pipe.send(cpu_s() - before)


def tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


def endpoint_receiver(pipe: Connection, nbytes: int, piece_bytes: int, loop: str) -> None:
    async def work() -> None:
        endpoint = TcpEndpoint("receiver", host="127.0.0.1", nic=PacedNic("r"), secret=SECRET)

        async def ignore(peer: Address, message: bytes) -> None:
            pass

        await endpoint.start(ignore)
        memory = Memory(nbytes * REGION_WRITES, piece_bytes)
        address = endpoint.address
        pipe.send((address.incarnation, address.port, endpoint.register(memory)))
        running = asyncio.get_running_loop()
        while (count := await running.run_in_executor(None, pipe.recv)) is not None:
            before = cpu_s()
            pipe.send(None)
            await running.run_in_executor(None, pipe.recv)
            assert memory.writes == count
            memory.writes = 0
            pipe.send(cpu_s() - before)
        await endpoint.close()

    run(loop, work)


class Plain:
    """The reference."""

    def __init__(self, nbytes: int) -> None:
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=plain_receiver, args=(other, nbytes))
        self.process.start()
        self.sock = socket.create_connection(("127.0.0.1", self.pipe.recv()))
        tune(self.sock)
        self.data = memoryview(bytearray(nbytes))

    def round(self, count: int) -> tuple[float, float]:
        self.pipe.send(count)
        before, began = cpu_s(), time.perf_counter()
        for _ in range(count):
            self.sock.sendall(self.data)
        self.sock.recv(1)
        took, cpu = time.perf_counter() - began, cpu_s() - before
        return took, cpu + self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


class Writes:
    """One-sided writes, `concurrent` of them under way at any time."""

    def __init__(self, nbytes: int, piece_bytes: int, concurrent: int, loop: str) -> None:
        self.nbytes, self.concurrent, self.loop = nbytes, concurrent, loop
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(
            target=endpoint_receiver, args=(other, nbytes, piece_bytes, loop)
        )
        self.process.start()
        incarnation, port, self.key = self.pipe.recv()
        self.peer = Address("receiver", incarnation, "127.0.0.1", port)
        self.data = memoryview(bytearray(nbytes))

    def round(self, count: int) -> tuple[float, float]:
        result = (0.0, 0.0)

        async def work() -> None:
            nonlocal result
            endpoint = TcpEndpoint("sender", host="127.0.0.1", nic=PacedNic("s"), secret=SECRET)

            async def ignore(peer: Address, message: bytes) -> None:
                pass

            await endpoint.start(ignore)
            await endpoint.send(self.peer, b"hello")
            numbers = iter(range(count))

            async def write() -> None:
                for number in numbers:
                    offset = number % REGION_WRITES * self.nbytes
                    await endpoint.write(self.peer, self.key, offset, [self.data])

            self.pipe.send(count)
            self.pipe.recv()
            before, began = cpu_s(), time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.concurrent):
                    group.create_task(write())
            result = (time.perf_counter() - began, cpu_s() - before)
            self.pipe.send(None)
            await endpoint.close()

        run(self.loop, work)
        took, cpu = result
        return took, cpu + self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write-bytes", type=parse_bytes, default=1 << 20)
    parser.add_argument("--total", type=parse_bytes, default=2 << 30, help="per round and way")
    parser.add_argument("--piece-bytes", type=parse_bytes, default=0, help="scatter; 0: one piece")
    parser.add_argument("--concurrent", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="warning")
    count = max(args.total // args.write_bytes, 1)
    total = count * args.write_bytes / 1e9
    plain = Plain(args.write_bytes)
    writes = Writes(args.write_bytes, args.piece_bytes, args.concurrent, args.loop)
    rates: dict[str, list[float]] = {"plain": [], "writes": []}
    costs: dict[str, list[float]] = {"plain": [], "writes": []}
    for _ in range(args.rounds):
        for name, took, cpu in (
            ("plain", *plain.round(count)),
            ("writes", *writes.round(count)),
        ):
            rates[name].append(total / took)
            costs[name].append(cpu / total)
    plain.close()
    writes.close()
    for name, values in rates.items():
        print(
            f"{name:6}  {statistics.median(values):5.2f} GB/s "
            f"({min(values):.2f} to {max(values):.2f})  "
            f"{statistics.median(costs[name]):.3f} CPU s/GB"
        )
    ratio = statistics.median(rates["writes"]) / statistics.median(rates["plain"])
    print(f"writes / plain = {ratio:.2f}  ({args.write_bytes} bytes each, {args.loop})")


if __name__ == "__main__":
    main()
