"""One engine of the isolation benchmark, in a process of its own: bursts on the high lane beside bulk on the low."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import resource
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Literal

import uvloop

from dualpath.cli.started import ends_afterwards
from dualpath.lanes import Lane, PacedNic
from dualpath.lanes.alarm import Alarm
from dualpath.lanes.pacer import PAUSE_CHUNKS, PAUSE_S
from dualpath.memory.arena import BufferRegion
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.collectives import Group, Seat
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

Case = Literal["baseline", "lanes on", "lanes off"]
CASES: tuple[Case, ...] = ("baseline", "lanes on", "lanes off")
NICS = ("lanes", "shared", "other")
"""Each member's: one with lanes, one without, and the one that takes the low traffic of the baseline."""
_USED: dict[Case, tuple[str, str]] = {
    "baseline": ("lanes", "other"),
    "lanes on": ("lanes", "lanes"),
    "lanes off": ("shared", "shared"),
}
"""The NIC of the bursts and the NIC of the low traffic."""
_SETTLE_S = 0.3
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Shape:
    """What is measured. Sizes in bytes; `piece` is what a burst sends to each other member."""

    members: int
    bytes_per_s: int
    quantum: int
    piece: int
    write: int
    """One low write; so many are under way to each other member: `writes`."""
    writes: int
    pause_s: float
    """Mean time between two bursts."""

    def __post_init__(self) -> None:
        """Raises ValueError where nothing could be measured."""
        if not (self.bytes_per_s and self.quantum and self.piece):
            raise ValueError("bandwidth, quantum and piece must be more than 0")

    @property
    def burst_s(self) -> float:
        """Time on the wire of a burst, if it were alone."""
        return self.piece * (self.members - 1) / self.bytes_per_s

    @property
    def chunk_s(self) -> float:
        """Time on the wire of one chunk: what the NIC decides about at once."""
        nic = PacedNic("chunk", self.bytes_per_s, quantum_bytes=self.quantum)
        return nic.quantum_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Measured:
    """By one member in one round of a case: seconds of each burst, and what went on beside."""

    bursts_s: list[float]
    low_bytes_per_s: float
    cpu_share: float
    """Of one core."""


@dataclass(frozen=True)
class Place:
    """How others reach a member's NIC: its seat in the group there, and where low writes go."""

    seat: Seat
    region_key: int


def run_member(pipe: Connection, shape: Shape, rank: int) -> None:
    """Body of the process: says its places, hears everybody's, then obeys (case, bursts, seed) until None."""
    configure_logging(f"member-{rank}", fmt="console", level="error")
    uvloop.run(_Member(shape, rank).obey(pipe))


class _Member:
    def __init__(self, shape: Shape, rank: int) -> None:
        self._shape = shape
        self._rank = rank
        self._nics = {
            name: PacedNic(
                f"{name}-{rank}",
                shape.bytes_per_s,
                quantum_bytes=shape.quantum,
                lanes=name != "shared",
            )
            for name in NICS
        }
        self._endpoints: dict[str, TcpEndpoint] = {}
        self._groups: dict[str, Group] = {}
        self._low: dict[str, list[tuple[Address, int]]] = {}

    async def obey(self, pipe: Connection) -> None:
        places = await self._open()
        pipe.send(places)
        everybody: list[dict[str, Place]] = await asyncio.to_thread(pipe.recv)
        for name in NICS:
            self._groups[name].join([places[name].seat for places in everybody])
            self._low[name] = [
                (places[name].seat.address, places[name].region_key)
                for rank, places in enumerate(everybody)
                if rank != self._rank
            ]
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await self._measure(*order))
        await asyncio.gather(*(group.close() for group in self._groups.values()))
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def _open(self) -> dict[str, Place]:
        shape, places = self._shape, {}
        for name, nic in self._nics.items():
            endpoint = TcpEndpoint(nic.name, host="127.0.0.1", nic=nic, secret=b"isolation")
            await endpoint.start(_ignore)
            region = BufferRegion(memoryview(bytearray(shape.write * shape.writes)))
            group = Group(endpoint, self._rank, shape.members, deadline_s=_DEADLINE_S)
            self._endpoints[name], self._groups[name] = endpoint, group
            places[name] = Place(group.seat, endpoint.register(region))
        return places

    async def _measure(self, case: Case, bursts: int, seed: int) -> Measured:
        high, low = _USED[case]
        group, nic = self._groups[high], self._nics[low]
        draw = random.Random(seed)
        pieces = [bytes(self._shape.piece)] * self._shape.members
        bursts_s: list[float] = []
        async with self._bulk(low):
            await asyncio.sleep(_SETTLE_S)
            await group.all_gather(b"")
            began, cpu, moved = time.monotonic(), _cpu_s(), nic.moved()[Lane.LOW, "tx"]
            for _ in range(bursts):
                await asyncio.sleep(self._shape.pause_s * (0.5 + draw.random()))
                # Members wake at different times; what is timed begins when all are there, and a little later:
                # a port makes up for a pause after its last chunk, which the baseline would gain by, if it is short.
                await group.all_gather(b"")
                await _sleep(2 * max(PAUSE_S, PAUSE_CHUNKS * self._shape.chunk_s))
                start = time.perf_counter()
                await group.all_to_all(pieces)
                bursts_s.append(time.perf_counter() - start)
            took = time.monotonic() - began
            moved = nic.moved()[Lane.LOW, "tx"] - moved
            cpu = _cpu_s() - cpu
            # Nobody stops the low traffic before all have measured.
            await group.all_gather(b"")
        return Measured(bursts_s, moved / took, cpu / took)

    @asynccontextmanager
    async def _bulk(self, name: str) -> Any:
        """Low writes to every other member, one after another in each of `writes` streams."""
        endpoint, size = self._endpoints[name], self._shape.write
        source = memoryview(bytearray(size))

        async def stream(peer: Address, key: int, number: int) -> None:
            while True:
                await endpoint.write(peer, key, number * size, [source])

        tasks = [
            asyncio.create_task(stream(peer, key, number))
            for peer, key in self._low[name]
            for number in range(self._shape.writes)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if not isinstance(error, asyncio.CancelledError):
                    raise RuntimeError("the low traffic ended by itself") from error


async def _sleep(seconds: float) -> None:
    """As asyncio.sleep, but late by tens of microseconds only: members must not drift apart."""
    woken = asyncio.Event()
    alarm = Alarm(woken.set)
    try:
        alarm.set(seconds)
        await woken.wait()
    finally:
        alarm.close()


async def _ignore(peer: Address, message: bytes) -> None:
    """There are no messages."""


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Members:
    """The processes. Use as a context; raises RuntimeError where one of them ends by itself."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []

    def __enter__(self) -> Members:
        try:
            # One whose start is broken off would say that it was told nothing.
            with ends_afterwards():
                self._start()
            self._tell(self._answers())
        except BaseException:
            self._end(at_once=True)
            raise
        return self

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for rank in range(self._shape.members):
            here, there = context.Pipe()
            process = context.Process(
                target=run_member, args=(there, self._shape, rank), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._end(at_once=kind is not None)

    def _end(self, *, at_once: bool = False) -> None:
        """`at_once`: in the middle of a round, whose end nobody waits for."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes if at_once else ():
            # All before the end of any is waited for: the others would fail by that, and say so.
            process.kill()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()

    def measure(self, case: Case, bursts: int, seed: int) -> list[Measured]:
        """One round of a case, by member."""
        self._tell((case, bursts, seed))
        return self._answers()

    def _tell(self, message: object) -> None:
        for pipe in self._pipes:
            pipe.send(message)

    def _answers(self) -> list[Any]:
        try:
            return [pipe.recv() for pipe in self._pipes]
        except EOFError:
            raise RuntimeError(
                "a member of the benchmark ended by itself; what it printed says why"
            ) from None


def bursts_of(rounds: Sequence[Sequence[Measured]]) -> list[float]:
    """All bursts of all members, sorted. A burst is over for the model when it is over for all, so the longest
    of its members' times counts."""
    return sorted(
        max(times)
        for members in rounds
        for times in zip(*(measured.bursts_s for measured in members), strict=True)
    )
