"""Who gets a link and who does not."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from tests.support.transport import Make, RawPeer
from tests.support.wait import until

from dualpath.transport import handshake
from dualpath.transport.accepting import MAX_UNPROVEN
from dualpath.transport.api import LinkError, PeerRefused
from dualpath.wire.codec import PROTOCOL_VERSION
from dualpath.wire.types import Address


async def test_another_secret_is_refused_by_both_sides(make: Make) -> None:
    left, right = await make("left"), await make("right", secret=b"another")
    for source, target in ((left, right), (right, left)):
        with pytest.raises(PeerRefused, match="secret"):
            await source.send(target.address, b"m")
    assert not left._routes.links


async def test_another_protocol_version_is_refused_with_both_numbers(make: Make) -> None:
    endpoint = await make("endpoint")
    with pytest.raises(handshake.Refusal, match=f"version 99, this process {PROTOCOL_VERSION}"):
        await RawPeer.dial(endpoint.address, protocol=99)


async def test_a_life_that_is_over_is_refused(make: Make) -> None:
    left, right = await make("left"), await make("right")
    old = msgspec.structs.replace(right.address, incarnation="0123")
    with pytest.raises(PeerRefused, match="restarted"):
        await left.send(old, b"m")
    await left.send(msgspec.structs.replace(right.address, incarnation=""), b"m")
    # A link to the present life does not serve the old one either.
    with pytest.raises(PeerRefused, match="restarted"):
        await left.send(old, b"m")


async def test_another_peer_at_the_address_is_refused(make: Make) -> None:
    left, right = await make("left"), await make("right")
    with pytest.raises(PeerRefused, match="right listens here"):
        await left.send(Address("someone", "", right.address.host, right.address.port), b"m")


async def test_fingerprints_must_agree_where_both_sides_have_one(make: Make) -> None:
    llama = await make("llama", fingerprint="llama")
    qwen = await make("qwen", fingerprint="qwen")
    shard = await make("shard")
    with pytest.raises(PeerRefused, match="serves model llama"):
        await llama.send(qwen.address, b"m")
    await llama.send(shard.address, b"m")
    await shard.send(qwen.address, b"m")


async def test_an_endpoint_does_not_dial_itself(make: Make) -> None:
    endpoint = await make("endpoint")
    with pytest.raises(PeerRefused, match="itself"):
        await endpoint.send(endpoint.address, b"m")


async def test_nobody_at_the_address_is_a_link_error_that_names_it(make: Make) -> None:
    left, right = await make("left"), await make("right")
    await right.close()
    with pytest.raises(LinkError, match=f"right at 127.0.0.1:{right.address.port}"):
        await left.send(right.address, b"m")


async def test_a_server_of_another_kind_is_refused(make: Make) -> None:
    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + bytes(100))
        await writer.drain()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    endpoint = await make("endpoint")
    async with await asyncio.start_server(chat, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerRefused, match="a frame begins with"):
            await endpoint.send(Address("web", "", "127.0.0.1", port), b"m")


async def test_a_server_that_says_nothing_ends_with_the_deadline(make: Make) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    endpoint = await make("endpoint", transfer_deadline_s=0.3)
    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LinkError, match="within"):
            await endpoint.send(Address("mute", "", "127.0.0.1", port), b"m")


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: dualpath.example\r\n\r\n", bytes(64), b"\xa7\xd9" + b"\xff" * 62],
)
async def test_garbage_before_the_handshake_costs_only_its_connection(
    make: Make, garbage: bytes
) -> None:
    left, right = await make("left"), await make("right")
    reader, writer = await asyncio.open_connection(right.address.host, right.address.port)
    writer.write(garbage)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await left.send(right.address, b"m")


async def test_a_stranger_who_says_nothing_is_cut(make: Make) -> None:
    endpoint = await make("endpoint", transfer_deadline_s=0.3)
    reader, writer = await asyncio.open_connection(endpoint.address.host, endpoint.address.port)
    assert await reader.read() == b""
    writer.close()


async def test_strangers_cannot_keep_a_peer_out(make: Make) -> None:
    left, right = await make("left"), await make("right", transfer_deadline_s=60.0)
    strangers = [
        await asyncio.open_connection(right.address.host, right.address.port)
        for _ in range(MAX_UNPROVEN + 20)
    ]
    await until(lambda: len(right._accepts) >= MAX_UNPROVEN)
    await left.send(right.address, b"m")
    assert len(right._accepts) <= MAX_UNPROVEN
    for _, writer in strangers:
        writer.close()


async def test_a_peer_that_dials_again_replaces_its_older_link(make: Make) -> None:
    endpoint = await make("endpoint")
    first = await RawPeer.dial(endpoint.address)
    await until(lambda: bool(endpoint._routes.links))
    second = await RawPeer.dial(endpoint.address)
    async with asyncio.timeout(60):
        await first.closed()
    await until(lambda: len(endpoint._routes.links) == 1)
    first.close()
    second.close()
