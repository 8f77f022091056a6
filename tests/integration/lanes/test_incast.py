"""Several senders into one receiving NIC, over real sockets: they share its rate, and it slows them down."""

from __future__ import annotations

import asyncio
import time

from tests.support.transport import Bytes, Make

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import NicUse

RATE = 20e6
WRITE_BYTES = 500_000
WRITES = 4
SENDERS = 3


class Incast:
    """Endpoints with NICs of no limit that write to one with a NIC of RATE; `acked` bytes by sender."""

    def __init__(self, target: TcpEndpoint, senders: list[TcpEndpoint]) -> None:
        self.target = target
        self.senders = senders
        self.acked = [0] * len(senders)
        self.regions = [Bytes(WRITE_BYTES) for _ in senders]
        self.keys = [target.register(region) for region in self.regions]
        self.began_s = time.monotonic()

    async def write(self, number: int, lane: Lane) -> None:
        data = bytes([number + 1]) * WRITE_BYTES
        for _ in range(WRITES):
            await self.senders[number].write(
                self.target.address, self.keys[number], 0, [data], lane=lane
            )
            self.acked[number] += WRITE_BYTES
            elapsed = time.monotonic() - self.began_s
            assert sum(self.acked) <= RATE * elapsed + self.burst_bytes

    @property
    def burst_bytes(self) -> float:
        return max(2 * self.target.nic.quantum_bytes, 0.002 * RATE)


async def incast(make: Make, lanes: list[Lane]) -> Incast:
    target = await make("target", nic=PacedNic("target", RATE))
    senders = [await make(f"sender{number}") for number in range(len(lanes))]
    run = Incast(target, senders)
    async with asyncio.TaskGroup() as group:
        for number, lane in enumerate(lanes):
            group.create_task(run.write(number, lane))
    return run


def received(run: Incast, lane: Lane) -> NicUse:
    name = lane.name.lower()
    uses = run.target.nic.uses()
    return next(use for use in uses if (use.lane, use.direction) == (name, "rx"))


async def test_all_together_get_no_more_than_the_ports_rate(make: Make) -> None:
    run = await incast(make, [Lane.LOW] * SENDERS)
    low = received(run, Lane.LOW)
    assert low.nbytes == SENDERS * WRITES * WRITE_BYTES
    assert low.wait_s > 0
    for number, region in enumerate(run.regions):
        assert region.memory == bytes([number + 1]) * WRITE_BYTES


async def test_the_high_lane_overtakes_an_incast_of_the_low_one(make: Make) -> None:
    run = await incast(make, [Lane.LOW, Lane.LOW, Lane.HIGH])
    high, low = received(run, Lane.HIGH), received(run, Lane.LOW)
    assert high.nbytes == WRITES * WRITE_BYTES
    contended = high.contended_bytes + low.contended_bytes
    assert high.contended_bytes > 0.9 * contended
