"""Peers in processes of their own that are killed, stopped, or cut off by the network."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.support.transport import (
    DEADLINE_S,
    EVERY_WAY,
    Bytes,
    Make,
    PeerProcess,
    RawPeer,
    Relay,
    peer_process,
    stop,
)
from tests.support.wait import until

from dualpath.lanes import PacedNic
from dualpath.transport.api import LinkError
from dualpath.transport.frames import END, Header, Kind, Status
from dualpath.wire.types import Address

WAYS = [*EVERY_WAY[:-1], pytest.param("shared", marks=pytest.mark.slow)]
NBYTES = 20_000_000


@pytest.fixture
async def remote(transport: str) -> AsyncIterator[PeerProcess]:
    """An endpoint in another process, and the key of its region of NBYTES."""
    async with peer_process(NBYTES, transport) as peer:
        yield peer


async def test_bytes_arrive_whole_in_another_process_and_come_back(
    make: Make, remote: PeerProcess
) -> None:
    received: list[bytes] = []

    async def take(peer: Address, message: bytes) -> None:
        received.append(message)

    _, address, key = remote
    endpoint = await make("endpoint", take)
    back = Bytes(NBYTES)
    data = random.Random(1).randbytes(NBYTES)
    part = NBYTES // 8
    async with asyncio.TaskGroup() as group:
        for start in range(0, NBYTES, part):
            piece = memoryview(data)[start : start + part]
            group.create_task(endpoint.write(address, key, start, [piece]))
    await endpoint.send(address, b"sum")
    await until(lambda: bool(received))
    assert received == [hashlib.sha256(data).digest()]
    await endpoint.send(address, b"push %d" % endpoint.register(back))
    await until(lambda: back.imms == [8])
    assert back.memory == data


async def test_a_killed_peer_ends_what_is_under_way(make: Make, remote: PeerProcess) -> None:
    process, address, key = remote
    endpoint = await make("endpoint")
    await endpoint.write(address, key, 0, [bytes(NBYTES)])
    (link,) = endpoint._routes.links
    # Else it might answer one of them before it is killed.
    stop(process)
    operations = [
        asyncio.ensure_future(endpoint.write(address, key, 0, [bytes(NBYTES)])),
        asyncio.ensure_future(endpoint.send(address, b"sum")),
    ]
    await until(lambda: link._sender.under_way == 2)
    process.kill()
    for operation in operations:
        with pytest.raises(LinkError, match="peer at"):
            await operation
    with pytest.raises(LinkError, match="cannot be reached"):
        await endpoint.send(address, b"sum")


async def test_a_stopped_peer_is_cut_and_comes_back(make: Make, remote: PeerProcess) -> None:
    process, address, key = remote
    endpoint = await make("endpoint", transfer_deadline_s=DEADLINE_S)
    await at_last(endpoint.write, address, key, 0, [b"x"])
    stop(process)
    source = bytearray(NBYTES)
    operations = [
        asyncio.ensure_future(endpoint.write(address, key, 0, [source])),
        asyncio.ensure_future(endpoint.send(address, b"sum")),
    ]
    for operation in operations:
        with pytest.raises(LinkError, match="peer at"):
            await operation
    with pytest.raises(LinkError, match="within"):
        await endpoint.write(address, key, 0, [source])
    process.send_signal(signal.SIGCONT)
    # It has yet to find its connections closed.
    await at_last(endpoint.write, address, key, 0, [source])


async def at_last(operate: Callable[..., Awaitable[None]], *args: object) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                return await operate(*args)
            except LinkError:
                continue


async def test_a_process_that_was_stopped_itself_does_not_blame_its_peers(
    make: Make, transport: str
) -> None:
    async with peer_process(NBYTES, transport, link_deadline_s=DEADLINE_S) as (
        process,
        address,
        key,
    ):
        endpoint = await make("endpoint", transfer_deadline_s=60.0)
        back = Bytes(NBYTES)
        await endpoint.write(address, key, 0, [b"x" * NBYTES])
        (link,) = endpoint._routes.links
        stop(process)
        # The length of the stop is what is tested: longer than the peer's deadline.
        await asyncio.sleep(DEADLINE_S * 2.5)
        process.send_signal(signal.SIGCONT)
        await endpoint.send(address, b"push %d" % endpoint.register(back))
        await until(lambda: bool(back.imms))
        assert endpoint._routes.links == {link}


async def test_a_connection_that_was_dropped_while_idle_costs_no_operation(make: Make) -> None:
    deadline_s = 3.0
    left = await make("left", transfer_deadline_s=deadline_s)
    right = await make("right", transfer_deadline_s=60.0)
    region = Bytes(1000)
    key = right.register(region)
    async with Relay(right.address) as relay:
        await left.write(relay.address, key, 0, [b"a"])
        relay.swallow()
        (link,) = left._routes.links
        await until(lambda: link._receiver.silent_s > deadline_s * 0.6)
        await left.write(relay.address, key, 0, [b"b" * 1000])
        assert region.memory == b"b" * 1000
        assert relay.connections == 2
        assert link.lost is not None
        await left.send(relay.address, b"m")


async def test_an_idle_link_stays_whatever_the_two_deadlines_are(make: Make) -> None:
    short = await make("short", link_deadline_s=0.4)
    long = await make("long", link_deadline_s=60.0)
    await short.send(long.address, b"m")
    (link,) = short._routes.links
    heard = 0

    def count() -> None:
        nonlocal heard
        heard += 1

    # Heartbeats of the side with the long deadline, over more than two of the short ones.
    link._receiver._on_heard = count
    await until(lambda: heard >= 10)
    assert short._routes.links == {link}
    assert link.lost is None


async def test_losing_a_link_leaves_the_task_that_wrote_as_it_was(make: Make) -> None:
    left, right = await make("left"), await make("right")
    await left.send(right.address, b"m")
    region = Bytes(NBYTES)
    key = right.register(region)

    async def write() -> tuple[bool, int]:
        lost = False
        try:
            await left.write(right.address, key, 0, [b"x" * NBYTES])
        except LinkError:
            lost = True
        # A cancellation that was left over would strike here.
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return lost, task.cancelling()

    writing = [asyncio.ensure_future(write()) for _ in range(3)]
    await until(lambda: any(region.memory[:1]))
    (link,) = left._routes.links
    link.fail("lost on purpose")
    results = await asyncio.gather(*writing)
    assert (True, 0) in results
    assert {cancelling for _, cancelling in results} == {0}


async def test_a_slow_receiver_is_not_taken_for_a_stopped_one(make: Make) -> None:
    left = await make("left", link_deadline_s=0.3)
    right = await make("right", nic=PacedNic("right", 1_000_000), link_deadline_s=0.3)
    region = Bytes(1_500_000)
    await left.write(right.address, right.register(region), 0, [b"s" * region.nbytes])
    assert region.memory == b"s" * region.nbytes


async def test_a_peer_whose_payload_trickles_is_not_taken_for_silent(make: Make) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    region = Bytes(100_000)
    peer = await RawPeer.dial(endpoint.address)
    header = Header(Kind.WRITE, END, region.nbytes, 1, endpoint.register(region))
    await peer.say(header, b"x" * 1000)
    for _ in range(4):
        # The time is what is tested: together longer than the deadline, each shorter.
        await asyncio.sleep(DEADLINE_S * 0.6)
        await peer.send(b"x" * 1000)
    await peer.send(b"x" * (region.nbytes - 5000))
    assert (await peer.hear(Kind.WRITE_ACK)).code == Status.OK
    assert region.memory == b"x" * region.nbytes
    peer.close()
