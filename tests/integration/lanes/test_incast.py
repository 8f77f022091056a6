"""NICs under real links: several senders share a receiving NIC's rate, which slows them down; and what is charged."""

from __future__ import annotations

import asyncio
import time

from tests.support.transport import Bytes, Make

from dualpath.lanes import Lane, PacedNic
from dualpath.lanes.api import Direction
from dualpath.transport.frames import HEADER_BYTES
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


async def test_headers_take_bandwidth_too(make: Make) -> None:
    """In both directions: of the sender's NIC out, and of the receiver's in."""
    rate, count, nbytes = 200e3, 300, 64
    for paced in ("sender", "target"):
        nics = {
            name: PacedNic(name, rate if name == paced else None) for name in ("sender", "target")
        }
        sender, target = [await make(f"{name}-{paced}", nic=nic) for name, nic in nics.items()]
        key = target.register(Bytes(nbytes))
        began_s = time.monotonic()
        for _ in range(count):
            await sender.write(target.address, key, 0, [bytes(nbytes)])
        most = rate * (time.monotonic() - began_s) + 2 * nics[paced].quantum_bytes
        assert count * (nbytes + HEADER_BYTES) <= most
        assert nics[paced].moved()[Lane.LOW, "tx" if paced == "sender" else "rx"] == count * nbytes
        nics[paced].close()


class Charged(PacedNic):
    """A NIC that also counts what is charged to it by direction."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.charged = {"tx": 0, "rx": 0}

    def charge(self, lane: Lane, direction: Direction, nbytes: int) -> None:
        super().charge(lane, direction, nbytes)
        self.charged[direction] += nbytes


async def test_headers_and_acknowledgements_are_charged_on_both_sides(make: Make) -> None:
    nics = [Charged("sender"), Charged("target")]
    sender, target = [await make(nic.name, nic=nic) for nic in nics]
    key = target.register(Bytes(1))
    for _ in range(10):
        await sender.write(target.address, key, 0, [b"x"])
        await sender.send(target.address, b"message")
    for nic in nics:
        for nbytes in nic.charged.values():
            # Signs of life may have come on top.
            assert 20 * HEADER_BYTES <= nbytes < 25 * HEADER_BYTES
