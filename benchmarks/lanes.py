"""What the lanes of an emulated NIC do in real time, on a real event loop.

`shares`: both lanes saturated through one CNIC, at the NIC alone and with one-sided writes over sockets; and
the low lane alone. `isolation`: how long a small chunk of the high lane waits for its turn while the low one
saturates. `pacing`: what a saturated port moves in a second against its rate, and the most that left beyond
it in any time (`burst`, against max(2 quanta, 2 ms at the rate)). `work requests`: what one costs, and what a
piece of a scatter/gather list costs, which is submitted as one.

    python -m benchmarks.lanes
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import uvloop

from dualpath.lanes import Lane, PacedNic
from dualpath.settings import parse_rate
from dualpath.settings.vl import VlArbitration
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

RATES = (1e6, 10e6, 50e6, 100e6, 400e6, 1e9, 2e9)
SENDERS = 4
"""Of each lane: as many chunks wait at any time."""
WRITE_BYTES = 1 << 20
SMALL_BYTES = 4096
PIECES = 64
REQUESTS = 3000


class Memory:
    """A region that keeps what comes last."""

    def __init__(self, nbytes: int) -> None:
        self.view = memoryview(bytearray(nbytes))

    @property
    def nbytes(self) -> int:
        return len(self.view)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return [self.view[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        pass


class Grants:
    """Chunks and when they were granted."""

    def __init__(self) -> None:
        self.log: list[tuple[float, int]] = []

    async def send_on(self, nic: PacedNic, lane: Lane, nbytes: int) -> None:
        while True:
            await nic.send(lane, nbytes)
            self.log.append((time.perf_counter(), nbytes))

    def burst(self, bytes_per_s: float) -> float:
        """The most that was granted in any time beyond what the rate gives in it."""
        sent, least, most = 0.0, float("inf"), 0.0
        for at, nbytes in self.log:
            least = min(least, sent - bytes_per_s * at)
            sent += nbytes
            most = max(most, sent - bytes_per_s * at - least)
        return most


@asynccontextmanager
async def running(work: Sequence[Awaitable[None]]) -> AsyncIterator[None]:
    """Run `work` until the block is left."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def used(nic: PacedNic) -> dict[Lane, int]:
    return {lane: nic.moved()[lane, "tx"] for lane in Lane}


async def moved_in(nic: PacedNic, seconds: float) -> tuple[dict[Lane, int], float]:
    """Bytes by lane in about `seconds` from now on, and how long it was."""
    before, began = used(nic), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return {lane: used(nic)[lane] - before[lane] for lane in Lane}, took


def print_shares(title: str, moved: dict[Lane, int], took: float, rate: float) -> None:
    total = sum(moved.values())
    print(
        f"  {title:42} high {moved[Lane.HIGH] / total:8.3%}  low {moved[Lane.LOW] / total:8.3%}"
        f"  together {total / took / rate:7.2%} of the rate"
    )


async def shares(rate: float, seconds: float) -> None:
    print(f"shares, {rate / 1e6:g} MB/s, {seconds:g} s, {SENDERS} senders a lane")
    for title, tables, lanes in (
        ("both lanes, at the NIC", None, [*Lane]),
        ("low lane alone, at the NIC", None, [Lane.LOW]),
        ("both lanes, the paper's VL tables", VlArbitration(), [*Lane]),
    ):
        nic = PacedNic("cnic", rate, tables=tables)
        quantum = nic.quantum_bytes
        work = [Grants().send_on(nic, lane, quantum) for lane in lanes for _ in range(SENDERS)]
        async with running(work):
            await asyncio.sleep(0.2)
            moved, took = await moved_in(nic, seconds)
        nic.close()
        print_shares(title, moved, took, rate)
    for title, lanes in (("both lanes, writes", [*Lane]), ("low lane alone, writes", [Lane.LOW])):
        await written_shares(title, lanes, rate, seconds)


async def ignore(peer: Address, message: bytes) -> None:
    pass


async def endpoint_of(name: str, nic: PacedNic) -> TcpEndpoint:
    endpoint = TcpEndpoint(name, host="127.0.0.1", nic=nic, secret=b"benchmark")
    await endpoint.start(ignore)
    return endpoint


async def written_shares(title: str, lanes: list[Lane], rate: float, seconds: float) -> None:
    """One-sided writes over sockets, from one paced CNIC to a NIC without limits."""
    nic = PacedNic("cnic", rate)
    sender, receiver = await endpoint_of("sender", nic), await endpoint_of("r", PacedNic("r"))
    memory = Memory(WRITE_BYTES)
    key, data = receiver.register(memory), memoryview(bytes(WRITE_BYTES))

    async def write_on(lane: Lane) -> None:
        while True:
            await sender.write(receiver.address, key, 0, [data], lane=lane)

    async with running([write_on(lane) for lane in lanes for _ in range(SENDERS)]):
        await asyncio.sleep(0.3)
        moved, took = await moved_in(nic, seconds)
    await sender.close()
    await receiver.close()
    nic.close()
    print_shares(title, moved, took, rate)


async def isolation(rate: float, seconds: float) -> None:
    print(f"\nwait of {SMALL_BYTES} bytes on the high lane, {rate / 1e6:g} MB/s, ms")
    for title, lanes, low in (
        ("low lane idle", True, 0),
        ("low lane saturated", True, SENDERS),
        ("low traffic saturates, lanes off", False, SENDERS),
    ):
        nic = PacedNic("cnic", rate, lanes=lanes)
        waits: list[float] = []
        async with running(
            [Grants().send_on(nic, Lane.LOW, nic.quantum_bytes) for _ in range(low)]
        ):
            ends = time.perf_counter() + seconds
            while (began := time.perf_counter()) < ends:
                await nic.send(Lane.HIGH, SMALL_BYTES)
                waits.append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(0.002)
        nic.close()
        cuts = statistics.quantiles(waits, n=100)
        chunk = nic.quantum_bytes / rate * 1e3
        print(f"  {title:42} p50 {cuts[49]:7.3f}  p99 {cuts[98]:7.3f}  (a chunk takes {chunk:.3f})")


async def pacing(seconds: float) -> None:
    print(f"\npacing, {seconds:g} s each, {SENDERS} senders")
    print("       rate   quantum   moved / rate   burst / bound   CPU")
    for rate in RATES:
        nic = PacedNic("cnic", rate)
        grants = Grants()
        quantum = nic.quantum_bytes
        work = [grants.send_on(nic, Lane.LOW, quantum) for _ in range(SENDERS)]
        async with running(work):
            await asyncio.sleep(max(0.1, 4 * quantum / rate))
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(seconds)
            cpu, took = time.process_time() - cpu, time.perf_counter() - began
        nic.close()
        # From a grant to a grant, or a slow rate's chunks would not divide the time.
        log = [(at, nbytes) for at, nbytes in grants.log if began <= at < began + took]
        moved = sum(nbytes for _, nbytes in log[1:]) / (log[-1][0] - log[0][0])
        bound = max(2 * quantum, 0.002 * rate)
        print(
            f"  {rate / 1e6:5g} MB/s  {quantum:8}   {moved / rate:12.4f}   "
            f"{grants.burst(rate) / bound:13.2f}   {cpu / took:4.0%}"
        )


async def per_request_us(count: int, request: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await request()
    return (time.perf_counter() - began) / count * 1e6


async def work_requests() -> None:
    print("\nwork requests, µs each")
    for title, rate in (("grant of an unpaced NIC", None), ("grant of a paced NIC", 1e12)):
        nic = PacedNic("nic", rate)

        async def grant(nic: PacedNic = nic) -> None:
            await nic.send(Lane.LOW, 1)

        print(f"  {title:42} {await per_request_us(10 * REQUESTS, grant):8.2f}")
    sender, receiver = [await endpoint_of(name, PacedNic(name)) for name in ("s", "r")]
    pieces = [memoryview(bytes(64)) for _ in range(PIECES)]
    key = receiver.register(Memory(64 * PIECES))

    async def write(source: list[memoryview]) -> None:
        await sender.write(receiver.address, key, 0, source)

    async def at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for piece in pieces:
                group.create_task(write([piece]))

    for title, count, requests, work in (
        ("write of 64 bytes, acknowledged", REQUESTS, 1, lambda: write(pieces[:1])),
        (f"{PIECES} such writes under way at once", REQUESTS // PIECES, PIECES, at_once),
        (f"{PIECES} pieces as one list", REQUESTS, PIECES, lambda: write(pieces)),
    ):
        print(f"  {title:42} {await per_request_us(count, work) / requests:8.2f}")
    await sender.close()
    await receiver.close()


async def everything(rate: float, seconds: float) -> None:
    await shares(rate, seconds)
    await isolation(rate, seconds)
    await pacing(seconds)
    await work_requests()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=parse_rate, default=400 * 10**6, help="of shares, isolation")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="warning")
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}\n")
    uvloop.run(everything(args.rate, args.seconds))


if __name__ == "__main__":
    main()
