"""A NIC that writes to itself, between host memory and a device's; here the device is memory of the host as well."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.support.transport import Make, endpoints, needs_rdma
from tests.support.wait import until

from dualpath.lanes import PacedNic
from dualpath.lanes.api import Lane, Priority
from dualpath.memory.device import HOST, DeviceBuffer, Staging
from dualpath.transport.api import LinkError
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.rdma.loopback import STAGING_BYTES, STAGING_ROOMS, Loopback
from dualpath.transport.rdma.memory import ROOM_BYTES, extent_of

pytestmark = needs_rdma
WAYS = ["rdma"]
NBYTES = 3 * ROOM_BYTES + 12_345


class Buffer(DeviceBuffer):
    """Device memory beside its window."""

    def __init__(self, nbytes: int, wire: bytes = b"", device: bytes = b"") -> None:
        self.nbytes = nbytes
        self.device = bytearray(device or bytes(nbytes))
        self._wire = memoryview(bytearray(wire or bytes(nbytes)))

    @property
    def wire(self) -> memoryview:
        return self._wire

    def to_device(self, start: int, stop: int) -> None:
        raise AssertionError("the NIC copies")

    to_host = to_device

    def free(self) -> None:
        self.device.clear()


class Counting(PacedNic):
    """Remembers the sizes of what it sends."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self.sizes: list[int] = []

    async def send(self, lane: Lane, nbytes: int, priority: Priority = Priority.BULK) -> None:
        self.sizes.append(nbytes)
        await super().send(lane, nbytes, priority)


class HostStaging(Staging):
    place = HOST
    nbytes = STAGING_BYTES

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(STAGING_BYTES))
        self.address = extent_of(self.memory)[0]
        self.closed = False

    async def into(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        assert isinstance(buffer, Buffer)
        buffer.device[start : start + nbytes] = self.memory[at : at + nbytes]

    async def out_of(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        assert isinstance(buffer, Buffer)
        self.memory[at : at + nbytes] = buffer.device[start : start + nbytes]

    def close(self) -> None:
        self.closed = True


async def loopback(make: Make, **options: object) -> tuple[RdmaEndpoint, Loopback]:
    endpoint = await make("pe.cnic0", **options)
    assert isinstance(endpoint, RdmaEndpoint)
    return endpoint, endpoint.loopback(HostStaging())


def draw(seed: int, nbytes: int = NBYTES) -> bytes:
    return random.Random(seed).randbytes(nbytes)


async def test_copies_of_both_directions_overlap_and_move_their_ranges_alone(make: Make) -> None:
    _, it = await loopback(make)
    data = [draw(seed) for seed in range(12)]
    down = [Buffer(NBYTES, wire=each) for each in data[:6]]
    up = [Buffer(NBYTES, device=each) for each in data[6:]]
    start, stop = 777, NBYTES - 4321
    await asyncio.gather(
        *(it.to_device(buffer, start, stop) for buffer in down),
        *(it.to_host(buffer, start, stop) for buffer in up),
    )
    right = [bytes(start) + each[start:stop] + bytes(NBYTES - stop) for each in data]
    assert [bytes(buffer.device) for buffer in down] == right[:6]
    assert [bytes(buffer.wire) for buffer in up] == right[6:]
    assert it.taken == 0


async def test_every_byte_passes_the_low_lane_once_each_way_in_chunks(make: Make) -> None:
    nic = Counting("cnic", 400e6, quantum_bytes=100_000)
    _, it = await loopback(make, nic=nic)
    await it.to_device(Buffer(1_050_000), 0, 1_050_000)
    await it.to_host(Buffer(50_000), 0, 50_000)
    assert nic.sizes == [100_000] * 10 + [50_000] * 2
    moved = nic.moved()
    assert (moved[Lane.LOW, "tx"], moved[Lane.LOW, "rx"]) == (1_100_000, 1_100_000)
    assert (moved[Lane.HIGH, "tx"], moved[Lane.HIGH, "rx"]) == (0, 0)


async def test_a_copy_that_is_cancelled_leaves_nothing_under_way(make: Make) -> None:
    endpoint, it = await loopback(make, nic=PacedNic("cnic", 20e6))
    buffer, other = Buffer(NBYTES, wire=b"\x01" * NBYTES), Buffer(300_000, wire=draw(1, 300_000))
    copying = asyncio.ensure_future(it.to_device(buffer, 0, NBYTES))
    beside = asyncio.ensure_future(it.to_device(other, 0, 300_000))
    await until(lambda: any(buffer.device[:1]))
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    landed = bytes(buffer.device)
    assert 0 < landed.count(1) < NBYTES
    await beside
    assert other.device == other.wire
    assert bytes(buffer.device) == landed
    assert it.taken == 0
    await until(lambda: endpoint._poller.resting)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_chunk_that_does_not_end_is_fenced_and_the_next_copy_has_new_agents(
    make: Make, cancelled: bool
) -> None:
    endpoint, it = await loopback(make, transfer_deadline_s=60.0)
    await it.to_device(Buffer(10), 0, 10)
    it._deadline_s = 0.5
    # Nobody looks after the rails any more: the NIC stands still.
    look = endpoint._poller._turn
    endpoint._poller._turn = lambda: None  # type: ignore[method-assign]
    copying = asyncio.ensure_future(it.to_device(Buffer(NBYTES), 0, NBYTES))
    if cancelled:
        await until(lambda: endpoint._poller._spinning and it.taken == 1)
        copying.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else LinkError):
        await copying
    assert it.taken == 0
    assert it._rails is None
    it._deadline_s = 60.0
    endpoint._poller._turn = look  # type: ignore[method-assign]
    endpoint._poller._spinning, endpoint._poller._next = False, None
    data = draw(3)
    again = Buffer(NBYTES, wire=data)
    await it.to_device(again, 0, NBYTES)
    assert bytes(again.device) == data


async def test_more_copies_than_rooms_wait_for_their_turn(make: Make) -> None:
    _, it = await loopback(make)
    buffers = [Buffer(5_000, wire=draw(seed, 5_000)) for seed in range(3 * STAGING_ROOMS)]
    await asyncio.gather(*(it.to_device(buffer, 0, 5_000) for buffer in buffers))
    assert all(buffer.device == buffer.wire for buffer in buffers)


async def test_closing_ends_copies_and_gives_the_staging_back() -> None:
    async with endpoints("rdma") as make:
        endpoint = await make("pe.cnic0", nic=PacedNic("cnic", 20e6))
        assert isinstance(endpoint, RdmaEndpoint)
        staging = HostStaging()
        it = endpoint.loopback(staging)
        await it.to_device(Buffer(10), 0, 10)
        assert not staging.closed
        await endpoint.close()
    assert staging.closed
    assert it._rails is None
