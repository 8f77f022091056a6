"""A peer that knows the secret and misbehaves loses its link; nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.transport import Bytes, Make, RawPeer, Scattered
from tests.support.wait import until

from dualpath.transport.api import LinkError
from dualpath.transport.frames import END, MESSAGE_WINDOW, Header, Kind, Status
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

Linked = tuple[TcpEndpoint, RawPeer, Bytes, int]


@pytest.fixture
async def linked(make: Make) -> AsyncIterator[Linked]:
    """An endpoint, a raw peer with a link to it, and a region there with its key."""
    endpoint = await make("endpoint", transfer_deadline_s=1.0)
    region = Bytes(1000)
    key = endpoint.register(region)
    peer = await RawPeer.dial(endpoint.address)
    await until(lambda: bool(endpoint._routes.links))
    yield endpoint, peer, region, key
    peer.close()


@asynccontextmanager
async def cut(endpoint: TcpEndpoint, peer: RawPeer) -> AsyncIterator[None]:
    """What happens inside costs the peer its link."""
    yield
    async with asyncio.timeout(20):
        await peer.closed()
    await until(lambda: not endpoint._routes.links)


async def test_an_honest_raw_peer_is_served(linked: Linked) -> None:
    _, peer, region, key = linked
    await peer.say(Header(Kind.WRITE, 0, 4, 1, key, 10), b"abcd")
    await peer.say(Header(Kind.WRITE, END, 4, 1, key, 14, 7), b"efgh")
    ack = await peer.hear(Kind.WRITE_ACK)
    assert (ack.op, ack.code) == (1, Status.OK)
    assert region.memory[10:18] == b"abcdefgh"
    assert region.imms == [7]


@pytest.mark.parametrize(("offset", "length"), [(0, 1001), (1000, 1), (2**64 - 1, 4)])
async def test_a_write_out_of_bounds(linked: Linked, offset: int, length: int) -> None:
    endpoint, peer, region, key = linked
    await peer.say(Header(Kind.WRITE, END, length, 1, key, offset))
    ack = await peer.hear(Kind.WRITE_ACK)
    assert ack.code == Status.MALFORMED
    async with cut(endpoint, peer):
        pass
    assert not any(region.memory)


async def test_a_key_that_was_never_issued(linked: Linked) -> None:
    endpoint, peer, _, key = linked
    async with cut(endpoint, peer):
        await peer.say(Header(Kind.WRITE, END, 4, 1, key ^ 1, 0), b"abcd")


@pytest.mark.parametrize(
    "header",
    [
        Header(Kind.WRITE_ACK, Status.OK, op=99),
        Header(Kind.MESSAGE_ACK, Status.OK, op=99),
        Header(Kind.WRITE_ACK, 77, op=1),
        Header(Kind.HELLO),
    ],
)
async def test_frames_that_have_no_place(linked: Linked, header: Header) -> None:
    endpoint, peer, _, _ = linked
    async with cut(endpoint, peer):
        await peer.say(header)


async def test_more_messages_than_the_window(linked: Linked, make: Make) -> None:
    blocked = asyncio.Event()

    async def block(peer: Address, message: bytes) -> None:
        await blocked.wait()

    endpoint = await make("blocked", block)
    peer = await RawPeer.dial(endpoint.address)
    async with asyncio.timeout(20):
        for op in range(MESSAGE_WINDOW + 1):
            await peer.say(Header(Kind.MESSAGE, 0, 1, op + 1), b"m")
        await peer.closed()
    blocked.set()
    await until(lambda: not endpoint._routes.links)
    peer.close()


async def test_a_peer_that_stops_in_the_middle_of_a_frame(linked: Linked) -> None:
    endpoint, peer, region, key = linked
    async with cut(endpoint, peer):
        await peer.say(Header(Kind.WRITE, END, 100, 1, key, 0), b"half")
    assert region.imms == []


async def test_the_memory_is_free_at_once_though_the_peer_stops_in_mid_frame(
    linked: Linked,
) -> None:
    endpoint, peer, region, key = linked
    await peer.say(Header(Kind.WRITE, END, 100, 1, key, 0), b"half")
    await until(lambda: region.memory[:4] == b"half")
    await endpoint.revoke(key)
    region.memory[:] = bytes(1000)
    await peer.loop.sock_sendall(peer.sock, b"x" * 96)
    ack = await peer.hear(Kind.WRITE_ACK)
    assert ack.code == Status.REVOKED
    assert not any(region.memory)
    assert region.imms == []


async def test_an_acknowledgement_of_what_was_not_sent_yet(linked: Linked, transport: str) -> None:
    endpoint, peer, _, _ = linked
    (link,) = endpoint._routes.links
    writing = asyncio.ensure_future(endpoint.write(link.peer, 5, 0, [bytes(50_000_000)]))
    await peer.hear(Kind.WRITE if transport == "tcp" else Kind.ATTACH)
    async with cut(endpoint, peer):
        await peer.say(Header(Kind.WRITE_ACK, Status.OK, op=1))
    with pytest.raises(LinkError):
        await writing
    assert link.lost is not None
    assert "before it was sent" in link.lost


async def test_a_peer_that_says_a_write_was_malformed(linked: Linked) -> None:
    endpoint, peer, _, _ = linked
    (link,) = endpoint._routes.links
    writing = asyncio.ensure_future(endpoint.write(link.peer, 5, 0, [b"x"]))
    await peer.hear(Kind.WRITE)
    await peer.say(Header(Kind.WRITE_ACK, Status.MALFORMED, op=1))
    with pytest.raises(LinkError, match="never issued"):
        await writing


async def test_seeded_garbage_after_the_handshake_harms_nobody(make: Make) -> None:
    endpoint = await make("endpoint", transfer_deadline_s=5.0)
    honest = await make("honest")
    region, target = Scattered(5000, 100), Bytes(300_000)
    keys = [endpoint.register(region), endpoint.register(Bytes(10)), 3]
    key = endpoint.register(target)
    draw = random.Random(11)
    for number in range(40):
        peer = await RawPeer.dial(endpoint.address, endpoint_id=f"raw{number}")
        noise = b"".join(_noise(draw, keys) for _ in range(draw.randrange(1, 30)))
        await peer.loop.sock_sendall(peer.sock, noise + draw.randbytes(draw.randrange(200)))
        await honest.write(endpoint.address, key, 0, [draw.randbytes(target.nbytes)])
        peer.close()
    await until(lambda: len(endpoint._routes.links) == 1)


def _noise(draw: random.Random, keys: list[int]) -> bytes:
    """Mostly right frames, with a lie now and then."""
    kind = draw.choice([Kind.WRITE, Kind.WRITE, Kind.WRITE, Kind.MESSAGE, Kind.ALIVE])
    length = 0 if kind is Kind.ALIVE else draw.randrange(3000)
    header = Header(
        kind,
        draw.randrange(2),
        length,
        draw.randrange(1, 9),
        draw.choice(keys),
        draw.randrange(2500),
    )
    data = bytearray(header.pack() + draw.randbytes(length))
    if draw.random() < 0.1:
        data[draw.randrange(min(len(data), 40))] ^= 1 << draw.randrange(8)
    return bytes(data)
