"""Where an endpoint listens, and where it says that it is, may differ."""

from __future__ import annotations

import asyncio

from tests.support.transport import Make

from dualpath.wire.types import Address


async def test_peers_dial_the_announced_name(make: Make) -> None:
    inside = await make("inside", host="127.0.0.1", announce="localhost")
    outside = await make("outside")
    assert inside.address.host == "localhost"
    await outside.send(inside.address, b"hello")


async def test_a_peer_learns_the_announced_name_from_the_handshake(make: Make) -> None:
    heard: asyncio.Future[Address] = asyncio.get_running_loop().create_future()

    async def on_message(peer: Address, message: bytes) -> None:
        heard.set_result(peer)

    listener = await make("listener", on_message)
    dialer = await make("dialer", host="127.0.0.1", announce="localhost")
    await dialer.send(listener.address, b"hello")
    assert await heard == dialer.address
