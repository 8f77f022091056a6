"""Encrypted links: who gets one, what goes over the wire, and that operations are what they are without."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from tests.support.certificates import Authority
from tests.support.transport import SECRET, Bytes, Make, RawPeer, Received, Relay, Scattered
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic
from dualpath.transport.api import LinkError, PeerRefused, Revoked
from dualpath.transport.stream import PlainStream, receive_into, send_all
from dualpath.transport.tls import Tls, TlsStream
from dualpath.wire.types import Address

WAYS = ["tcp"]
"""RDMA has no TLS: settings refuse the two together."""
NBYTES = 6_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> Tls:
    return authority.tls("node")


async def test_operations_in_both_directions_and_lanes_are_byte_exact(
    make: Make, authority: Authority
) -> None:
    received: Received = []

    async def take(peer: Address, message: bytes) -> None:
        received.append((peer, message))

    # Heartbeats are far apart: nothing but the bytes themselves can wake whoever waits for them.
    options = {"transfer_deadline_s": 600.0}
    left = await make("left", tls=authority.tls("left"), **options)
    right = await make("right", take, tls=authority.tls("right"), **options)
    regions = {left: Bytes(NBYTES), right: Scattered(NBYTES, 4096)}
    keys = {endpoint: endpoint.register(region) for endpoint, region in regions.items()}
    data = {endpoint: random.Random(3).randbytes(NBYTES) for endpoint in regions}
    step = NBYTES // 12
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(12):
            for source, target in ((left, right), (right, left)):
                part = memoryview(data[source])[number * step : (number + 1) * step]
                pieces = [part[start : start + 7000] for start in range(0, step, 7000)]
                group.create_task(
                    source.write(
                        target.address, keys[target], number * step, pieces, lane=Lane(number % 2)
                    )
                )
            group.create_task(left.send(right.address, b"%d" % number))
    scattered = regions[right]
    assert isinstance(scattered, Scattered)
    assert scattered.content() == data[left]
    assert regions[left].memory == data[right]
    assert received == [(left.address, b"%d" % number) for number in range(12)]


async def test_a_slow_receiver_gets_everything(make: Make, tls: Tls) -> None:
    """What TLS holds when the last frame is in, and the kernel full, follows by itself."""
    nic = PacedNic("left", quantum_bytes=100_000)
    left = await make("left", tls=tls, transfer_deadline_s=600.0, nic=nic)
    right = await make("right", tls=tls, transfer_deadline_s=600.0, nic=PacedNic("right", 30e6))
    region = Bytes(NBYTES * 3)
    data = random.Random(5).randbytes(region.nbytes)
    async with asyncio.timeout(60):
        await left.write(right.address, right.register(region), 0, [data])
    assert region.memory == data


async def test_what_tls_holds_is_read_though_nothing_more_comes(make: Make, tls: Tls) -> None:
    left = await make("left", tls=tls, transfer_deadline_s=600.0)
    right = await make("right", tls=tls, transfer_deadline_s=600.0)
    # More pieces than one call receives into: it leaves bytes behind that the kernel knows nothing of.
    region = Scattered(200_000, 50)
    data = random.Random(7).randbytes(region.nbytes)
    async with asyncio.timeout(60):
        for _ in range(5):
            await left.write(right.address, right.register(region), 0, [data])
            assert region.content() == data


async def test_revoking_and_cancelling_disturb_nobody(make: Make, tls: Tls) -> None:
    sender = await make("sender", tls=tls, nic=PacedNic("sender", 50e6))
    receiver = await make("receiver", tls=tls)
    gone, dropped, kept = Bytes(NBYTES), Bytes(NBYTES), Bytes(NBYTES)
    keys = [receiver.register(region) for region in (gone, dropped, kept)]
    data = random.Random(6).randbytes(NBYTES)
    writes = [
        asyncio.ensure_future(sender.write(receiver.address, key, 0, [data], imm=1)) for key in keys
    ]
    await until(lambda: all(any(region.memory[:10]) for region in (gone, dropped)))
    await receiver.revoke(keys[0])
    gone.memory[:] = bytes(NBYTES)
    writes[1].cancel()
    with pytest.raises(Revoked):
        await writes[0]
    with pytest.raises(asyncio.CancelledError):
        await writes[1]
    await writes[2]
    assert not any(gone.memory)
    assert kept.memory == data
    assert (gone.imms, dropped.imms, kept.imms) == ([], [], [1])
    assert len(sender._routes.links) == 1


class Wire(Relay):
    """A network that lets a test see and change what it carries."""

    def __init__(self, target: Address, change: Callable[[bytes], bytes]) -> None:
        super().__init__(target)
        self._change = change

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, generation: int
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                target.write(self._change(data))
                await target.drain()
        target.close()


async def test_neither_identities_nor_bytes_can_be_read_on_the_way(make: Make, tls: Tls) -> None:
    seen = bytearray()

    def listen(data: bytes) -> bytes:
        seen.extend(data)
        return data

    left, right = await make("left-node", tls=tls), await make("right-node", tls=tls)
    region = Bytes(100_000)
    async with Wire(right.address, listen) as wire:
        await left.write(wire.address, right.register(region), 0, [b"legible " * 12_500])
        await left.send(wire.address, b"a legible message")
    assert region.memory == b"legible " * 12_500
    assert len(seen) > 100_000
    for words in (b"legible", b"left-node", b"right-node", right.incarnation.encode()):
        assert words not in seen


async def test_bytes_that_are_changed_on_the_way_cost_the_link_and_land_nowhere(
    make: Make, tls: Tls
) -> None:
    armed = False

    def damage(data: bytes) -> bytes:
        if not armed:
            return data
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        return bytes(changed)

    left, right = await make("left", tls=tls), await make("right", tls=tls)
    region = Bytes(1000)
    key = right.register(region)
    async with Wire(right.address, damage) as wire:
        await left.send(wire.address, b"m")
        armed = True
        with pytest.raises(LinkError, match="was lost"):
            await left.write(wire.address, key, 0, [b"x" * 1000])
        assert not any(region.memory)
        armed = False
        await left.write(wire.address, key, 0, [b"y" * 1000])
    assert region.memory == b"y" * 1000


async def test_a_relay_with_a_certificate_of_the_cluster_cannot_sit_in_between(
    make: Make, authority: Authority
) -> None:
    left = await make("left", tls=authority.tls("left"))
    right = await make("right", tls=authority.tls("right"))
    middle = authority.tls("middle")

    async def relay(sock: socket.socket) -> None:
        far_sock = socket.create_connection((right.address.host, right.address.port))
        ends = PlainStream.of(sock), PlainStream.of(far_sock)
        try:
            near = await middle.accept(ends[0])
            far = await middle.connect(ends[1], right.address.host)
            ways = {asyncio.ensure_future(pump(*way)) for way in ((near, far), (far, near))}
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in ends:
                end.close()

    async def pump(source: TlsStream, target: TlsStream) -> None:
        buffer = memoryview(bytearray(1 << 16))
        while count := await receive_into(source, buffer):
            await send_all(target, bytes(buffer[:count]))

    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        dialing = asyncio.ensure_future(
            left.send(msgspec.structs.replace(right.address, port=port), b"m")
        )
        accepted, _ = await loop.sock_accept(listener)
        relaying = asyncio.ensure_future(relay(accepted))
        with pytest.raises(PeerRefused, match="secret"):
            await dialing
        await relaying
    assert not right._routes.links


@pytest.mark.parametrize("dialer_has_tls", [True, False])
async def test_a_side_without_tls_is_told_what_to_set(
    make: Make, tls: Tls, dialer_has_tls: bool
) -> None:
    dialer = await make("dialer", tls=tls if dialer_has_tls else None)
    listener = await make("listener", tls=None if dialer_has_tls else tls)
    match = "does it use TLS" if dialer_has_tls else "listener uses TLS, and who dials it no TLS"
    with pytest.raises(PeerRefused, match=match):
        await dialer.send(listener.address, b"m")
    assert not listener._routes.links


async def test_a_listener_with_a_certificate_of_another_authority_is_refused(
    make: Make, authority: Authority, tls: Tls, tmp_path_factory: pytest.TempPathFactory
) -> None:
    strange = Authority(tmp_path_factory.mktemp("other"), "other")
    dialer = await make("dialer", tls=tls)
    listener = await make("listener", tls=strange.tls("listener", trusts=authority))
    with pytest.raises(PeerRefused, match="certificate is not accepted"):
        await dialer.send(listener.address, b"m")
    assert not listener._routes.links


async def test_a_dialer_with_a_certificate_of_another_authority_is_refused(
    make: Make, authority: Authority, tls: Tls, tmp_path_factory: pytest.TempPathFactory
) -> None:
    strange = Authority(tmp_path_factory.mktemp("other"), "other")
    dialer = await make("dialer", tls=strange.tls("dialer", trusts=authority))
    listener = await make("listener", tls=tls)
    # In TLS 1.3 the client is done before the server has looked: it hears of it later, or just loses
    # the connection.
    with pytest.raises((PeerRefused, LinkError)):
        await dialer.send(listener.address, b"m")
    assert not listener._routes.links


async def test_a_certificate_for_another_host_or_a_time_that_is_over_is_refused(
    make: Make, authority: Authority, tls: Tls
) -> None:
    dialer = await make("dialer", tls=tls)
    elsewhere = await make("elsewhere", tls=authority.tls("elsewhere", host="192.0.2.1"))
    with pytest.raises(PeerRefused, match="IP address mismatch"):
        await dialer.send(elsewhere.address, b"m")
    over = await make("over", tls=authority.tls("over", valid_for=timedelta(days=-1)))
    with pytest.raises(PeerRefused, match="expired"):
        await dialer.send(over.address, b"m")


@pytest.mark.parametrize("fault", ["no certificate", "an older TLS", "another protocol inside"])
async def test_clients_that_are_no_links_get_nothing(
    make: Make, authority: Authority, tls: Tls, fault: str
) -> None:
    listener = await make("listener", tls=tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    if fault != "another protocol inside":
        context.set_alpn_protocols(["dualpath-link"])
    if fault == "an older TLS":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if fault != "no certificate":
        context.load_cert_chain(*authority.issue("client"))
    heard = b""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(
            listener.address.host, listener.address.port, ssl=context
        )
        heard = await reader.read()
        writer.close()
    assert heard == b""
    await until(lambda: not listener._accepts)
    friend = await make("friend", tls=tls)
    await friend.send(listener.address, b"m")


async def test_a_certificate_does_not_replace_the_secret(make: Make, tls: Tls) -> None:
    dialer, listener = await make("dialer", tls=tls, secret=b"another"), await make("l", tls=tls)
    with pytest.raises(PeerRefused, match="secret"):
        await dialer.send(listener.address, b"m")
    peer = await RawPeer.dial(listener.address, tls=tls, secret=SECRET)
    peer.close()


async def test_garbage_before_and_after_the_encryption_harms_nobody(make: Make, tls: Tls) -> None:
    listener, honest = await make("listener", tls=tls), await make("honest", tls=tls)
    region = Bytes(200_000)
    key = listener.register(region)
    draw = random.Random(8)
    for number in range(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
        writer.write(draw.choice([b"\x16\x03\x01", b"\xa7\xd9\x01", b""]) + draw.randbytes(200))
        peer = await RawPeer.dial(listener.address, endpoint_id=f"raw{number}", tls=tls)
        await peer.send(draw.randbytes(draw.randrange(1, 3000)))
        await honest.write(listener.address, key, 0, [draw.randbytes(region.nbytes)])
        peer.close()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await reader.read()
    await until(lambda: len(listener._routes.links) == 1)
