"""Peers that say that they live, and do nothing that they owe: an operation ends all the same. Those that are only
slow are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.transport import EVERY_TRANSPORT, Bytes, Make, RawPeer
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.api import LinkError
from dualpath.transport.frames import BUSY, Header, Kind
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

WAYS = EVERY_TRANSPORT
DEADLINE_S = 0.5
STALLS = "it lives, but did nothing"
RAW = Address("raw", "1", "127.0.0.1", 9)


@asynccontextmanager
async def stalled(endpoint: TcpEndpoint, code: int = 0) -> AsyncIterator[RawPeer]:
    """A peer that has a link, reads nothing, and says several times per deadline that it lives."""
    peer = await RawPeer.dial(endpoint.address)
    await until(lambda: bool(endpoint._routes.links))

    async def live() -> None:
        while True:
            await peer.say(Header(Kind.ALIVE, code))
            await asyncio.sleep(DEADLINE_S / 8)

    living = asyncio.ensure_future(live())
    try:
        yield peer
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        peer.close()


@pytest.mark.parametrize("nbytes", [1, 20_000_000])
async def test_a_write_that_is_never_acknowledged_ends(make: Make, nbytes: int) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    async with stalled(endpoint):
        (link,) = endpoint._routes.links
        # One that waited for the agents has not begun, and is tried again in vain.
        with pytest.raises(LinkError):
            await asyncio.wait_for(endpoint.write(RAW, 1, 0, [bytes(nbytes)]), 60)
        assert STALLS in str(link.lost)
        await until(lambda: not endpoint._routes.links)


async def test_a_message_that_is_never_acknowledged_ends(make: Make) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    async with stalled(endpoint):
        with pytest.raises(LinkError, match=STALLS):
            await asyncio.wait_for(endpoint.send(RAW, b"m"), 60)


async def test_who_only_lives_and_owes_nothing_keeps_its_link(make: Make) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    async with stalled(endpoint):
        (link,) = endpoint._routes.links
        heard = link._receiver._heard_at
        await until(lambda: link._receiver._heard_at > heard + 3 * DEADLINE_S)
        assert link.lost is None


async def test_who_says_that_it_is_busy_keeps_its_link(make: Make) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    async with stalled(endpoint, BUSY):
        (link,) = endpoint._routes.links
        sending = asyncio.ensure_future(endpoint.send(RAW, b"m"))
        heard = link._receiver._heard_at
        await until(lambda: link._receiver._heard_at > heard + 3 * DEADLINE_S)
        assert not sending.done()
        sending.cancel()


async def test_a_handler_that_takes_its_time_costs_no_link(make: Make) -> None:
    done = asyncio.Event()

    async def slow(peer: Address, message: bytes) -> None:
        await done.wait()

    left = await make("left", link_deadline_s=DEADLINE_S)
    right = await make("right", slow, link_deadline_s=DEADLINE_S)
    sending = asyncio.ensure_future(left.send(right.address, b"m"))
    await until(lambda: bool(left._routes.links))
    (link,) = left._routes.links
    signs = link._receiver.signs[0]
    # Heartbeats of a busy peer: more than there are within two deadlines.
    await until(lambda: link._receiver.signs[0] > signs + 10)
    assert not sending.done()
    done.set()
    await sending


async def test_slow_nics_on_both_sides_cost_no_link_in_either_direction(make: Make) -> None:
    """Each side's acknowledgements lie behind bytes that the other's NIC takes far longer than a deadline for."""
    deadline_s = 0.4
    ends = [
        await make(name, nic=PacedNic(name, 2_000_000), link_deadline_s=deadline_s)
        for name in ("left", "right")
    ]
    regions = [[Bytes(400_000) for _ in range(4)] for _ in ends]
    payload = bytes(range(250)) * 1600
    async with asyncio.TaskGroup() as group:
        for here, there, mine in zip(ends, reversed(ends), regions, strict=True):
            for number, region in enumerate(mine):
                write = here.write(
                    there.address, there.register(region), 0, [payload], lane=Lane(number % 2)
                )
                group.create_task(write)
    assert all(region.memory == payload for mine in regions for region in mine)
