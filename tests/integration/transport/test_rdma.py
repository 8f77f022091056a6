"""What holds over RDMA in particular: who is fenced, who is polled, and how, and what lies cost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator

import pytest
from tests.support.transport import (
    DEADLINE_S,
    SECRET,
    Bytes,
    Make,
    RawPeer,
    Scattered,
    endpoints,
    needs_rdma,
    peer_process,
    stop,
)
from tests.support.wait import until

from dualpath.lanes import PacedNic
from dualpath.transport.api import LinkError, Revoked
from dualpath.transport.frames import Header, Kind, Status
from dualpath.transport.rdma import NoRdma, RdmaEndpoint, nixl
from dualpath.transport.rdma.asked import WRITE_WINDOW
from dualpath.transport.rdma.extents import pack
from dualpath.transport.rdma.link import RdmaLink
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

pytestmark = needs_rdma
WAYS = ["rdma-pinned"]
NBYTES = 20_000_000


async def pair(make: Make) -> tuple[RdmaEndpoint, RdmaEndpoint]:
    """A writer with a NIC of 50 MB/s, and a target with a short deadline."""
    writer = await make("writer", nic=PacedNic("writer", 50e6))
    target = await make("target", link_deadline_s=DEADLINE_S)
    assert isinstance(writer, RdmaEndpoint)
    assert isinstance(target, RdmaEndpoint)
    return writer, target


# ── fences ─────────────────────────────────────────────────────────────────────────────────────────
async def test_revoking_waits_for_the_chunk_that_is_under_way_and_no_longer(make: Make) -> None:
    writer, target = await pair(make)
    region = Bytes(NBYTES)
    key = target.register(region)
    writing = asyncio.ensure_future(writer.write(target.address, key, 0, [b"\xff" * NBYTES]))
    await until(lambda: any(region.memory[:1]))
    await target.revoke(key)
    region.memory[:] = bytes(NBYTES)
    with pytest.raises(Revoked):
        await writing
    assert len(target._routes.links) == 1
    assert not any(region.memory)


async def test_a_writer_that_was_stopped_cannot_reach_memory_that_is_in_use_again(
    make: Make, transport: str
) -> None:
    target = await make("target", link_deadline_s=DEADLINE_S)
    region = Bytes(NBYTES)
    key = target.register(region)
    async with peer_process(NBYTES, transport, rate=50e6) as (process, address, _):
        await target.send(address, b"push %d" % key)
        await until(lambda: any(region.memory[:1]))
        stop(process)
        (link,) = target._routes.links
        await target.revoke(key)
        region.memory[:] = bytes(NBYTES)
        assert link.lost is not None
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            while True:
                try:
                    # Once it answers, it has found its old link closed.
                    await target.send(address, b"sum")
                    break
                except LinkError:
                    continue
    assert not any(region.memory)


async def test_a_write_into_pinned_memory_that_is_cancelled_ends_first(make: Make) -> None:
    writer, target = await pair(make)
    region = Bytes(NBYTES)
    key = target.register(region)
    source = bytearray(b"\x01" * NBYTES)
    writer.pin(memoryview(source))
    writing = asyncio.ensure_future(writer.write(target.address, key, 0, [source]))
    await until(lambda: any(region.memory[:1]))
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    source[:] = b"\x02" * NBYTES
    await target.revoke(key)
    assert 2 not in region.memory


async def test_a_writer_whose_slow_nic_holds_up_what_it_hears_is_not_fenced(make: Make) -> None:
    """The word that the key is revoked lies behind messages, and each of them waits its turn among other payload."""
    deadline_s, writes = DEADLINE_S / 2, 8
    writer = await make("writer", nic=PacedNic("writer", 1e6), link_deadline_s=deadline_s)
    target = await make("target", link_deadline_s=deadline_s)
    region, back = Bytes(NBYTES), Bytes(writes * 300_000)
    key, back_key = target.register(region), writer.register(back)
    async with asyncio.TaskGroup() as group:
        writing = asyncio.ensure_future(writer.write(target.address, key, 0, [b"x" * NBYTES]))
        await until(lambda: any(region.memory[:1]))
        for start in range(0, back.nbytes, 300_000):
            group.create_task(target.write(writer.address, back_key, start, [b"y" * 300_000]))
        await until(lambda: all(back.memory[299_999::300_000]))
        (link,) = writer._routes.links
        for _ in range(60):
            group.create_task(target.send(writer.address, b"m"))
        await until(lambda: link._receiver.busy)
        await target.revoke(key)
        region.memory[:] = bytes(NBYTES)
        with pytest.raises(Revoked):
            await writing
    assert writer._routes.links == {link}
    assert not any(region.memory)


async def test_a_target_that_stood_still_itself_does_not_fence_the_writer(make: Make) -> None:
    writer, target = await pair(make)
    region = Bytes(NBYTES)
    key = target.register(region)
    writing = asyncio.ensure_future(writer.write(target.address, key, 0, [b"x" * NBYTES]))
    await until(lambda: any(region.memory[:1]))
    (link,) = target._routes.links
    assert isinstance(link, RdmaLink)
    target._regions.revoke(key)
    link.drop(key)
    draining = asyncio.ensure_future(link.drained(key))
    await asyncio.sleep(0)
    # Both sides are in this process: the writer has not stopped yet.
    time.sleep(2 * DEADLINE_S)  # noqa: ASYNC251 -- Nothing else is to run.
    await draining
    with pytest.raises(Revoked):
        await writing
    assert link.lost is None


async def test_a_write_that_both_sides_cancel_at_once_disturbs_no_other(make: Make) -> None:
    writer, target = await make("writer"), await make("target")
    region, other = Bytes(NBYTES), Bytes(100_000)
    key, other_key = target.register(region), target.register(other)
    await writer.write(target.address, other_key, 0, [bytes(100_000)])
    (link,) = target._routes.links
    assert isinstance(link, RdmaLink)
    assert link._rail is not None
    look = link._rail.look
    # For a while nothing arrives, so that the writer has chunks under way when it is interrupted.
    link._rail.look = lambda: False  # type: ignore[method-assign]
    writing = asyncio.ensure_future(writer.write(target.address, key, 0, [bytes(NBYTES)]))
    (mine,) = writer._routes.links
    assert isinstance(mine, RdmaLink)
    await until(lambda: mine._rail is not None and mine._rail.flying)
    writing.cancel()
    revoking = asyncio.ensure_future(target.revoke(key))
    heard = mine._receiver.signs
    await until(lambda: mine._receiver.signs != heard)
    link._rail.look = look  # type: ignore[method-assign]
    await asyncio.wait_for(revoking, 60)
    with pytest.raises(asyncio.CancelledError):
        await writing
    await writer.write(target.address, other_key, 0, [b"y" * 100_000])
    assert other.memory == b"y" * 100_000
    assert writer._routes.links == {mine}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_peer_that_lets_no_bytes_in_holds_no_memory_of_the_writer(
    make: Make, cancelled: bool
) -> None:
    writer = await make("writer", link_deadline_s=DEADLINE_S)
    target = await make("target")
    region = Bytes(NBYTES)
    key = target.register(region)
    await writer.write(target.address, key, 0, [bytes(100_000)])
    (link,) = target._routes.links
    assert isinstance(link, RdmaLink)
    assert link._rail is not None
    # It heartbeats, and takes messages; only its NIC has died.
    link._rail.look = lambda: False  # type: ignore[method-assign]
    writing = asyncio.ensure_future(writer.write(target.address, key, 0, [bytes(NBYTES)]))
    (mine,) = writer._routes.links
    assert isinstance(mine, RdmaLink)
    await until(lambda: mine._rail is not None and mine._rail.flying)
    if cancelled:
        writing.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else LinkError):
        await asyncio.wait_for(asyncio.shield(writing), 20)
    assert mine.lost is not None


async def test_an_agent_goes_with_its_link(make: Make) -> None:
    writer, target = await make("writer"), await make("target")
    region = Bytes(100_000)
    key = target.register(region)
    await writer.write(target.address, key, 0, [bytes(100_000)])
    await writer.close()
    await until(lambda: not target._routes.links)
    fds = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        again = await make(f"again{number}")
        await again.write(target.address, key, 0, [bytes(100_000)])
        await again.close()
        await until(lambda: not target._routes.links)
    assert len(os.listdir("/proc/self/fd")) <= fds


# ── polling ────────────────────────────────────────────────────────────────────────────────────────
async def test_endpoints_without_a_write_under_way_are_not_polled(make: Make) -> None:
    writer, target = await pair(make)
    region = Bytes(100_000)
    key = target.register(region)
    await writer.write(target.address, key, 0, [bytes(100_000)])
    await writer.send(target.address, b"m")
    for endpoint in (writer, target):
        assert endpoint._poller.turns > 0
        assert endpoint._poller.resting


# ── set-up ─────────────────────────────────────────────────────────────────────────────────────────
async def test_memory_may_be_pinned_while_links_are_in_use(make: Make) -> None:
    writer, target = await make("writer"), await make("target")
    for number in range(3):
        region = Bytes(50_000)
        await writer.write(target.address, target.register(region), 0, [b"x" * 50_000], imm=number)
        assert region.memory == b"x" * 50_000
        assert region.imms == [number]


async def test_a_peer_that_speaks_tcp_alone_gets_messages_and_refuses_writes(make: Make) -> None:
    writer = await make("writer", link_deadline_s=DEADLINE_S)
    async with endpoints("tcp") as plain:
        target = await plain("target")
        assert type(target) is TcpEndpoint
        key = target.register(Bytes(100_000))
        await writer.send(target.address, b"m")
        with pytest.raises(LinkError, match="target at"):
            await writer.write(target.address, key, 0, [bytes(100_000)])


def test_without_nixl_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, nixl.MODULE, None)
    nixl.load.cache_clear()
    try:
        with pytest.raises(NoRdma, match=r"pip install 'dualpath\[rdma\]'"):
            RdmaEndpoint("e", host="127.0.0.1", nic=PacedNic("n"), secret=SECRET)
    finally:
        nixl.load.cache_clear()


async def test_a_device_that_does_not_exist_is_told_at_the_start() -> None:
    endpoint = RdmaEndpoint(
        "e", host="127.0.0.1", nic=PacedNic("n"), secret=SECRET, device="nonesuch0:1"
    )

    async def ignore(peer: Address, message: bytes) -> None:
        """Never called."""

    with pytest.raises(NoRdma, match=r"NET_DEVICES=nonesuch0:1.*rdma_devices"):
        await endpoint.start(ignore)
    await endpoint.close()


# ── lies ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
async def liar(make: Make) -> AsyncIterator[tuple[RdmaEndpoint, RawPeer, int]]:
    """An endpoint with a region of 100,000 bytes, and a raw peer that says that its agent is a true one's."""
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    assert isinstance(endpoint, RdmaEndpoint)
    key = endpoint.register(Bytes(100_000))
    peer = await RawPeer.dial(endpoint.address)
    agent = nixl.Agent("raw", "TLS=^cma,NET_DEVICES=lo")
    metadata = agent.metadata()
    await peer.say(Header(Kind.ATTACH, length=len(metadata)), metadata)
    await peer.hear(Kind.ATTACH)
    yield endpoint, peer, key
    agent.close()
    peer.close()


Liar = tuple[RdmaEndpoint, RawPeer, int]


async def cut(endpoint: RdmaEndpoint, peer: RawPeer) -> None:
    """Wait until the peer's link is closed, and see that the endpoint serves others."""
    async with asyncio.timeout(20):
        await peer.closed()
    await until(lambda: not endpoint._routes.links)


def ask(op: int, key: int, offset: int = 0, nbytes: int = 50_000) -> Header:
    return Header(Kind.ASK, op=op, key=key, offset=offset, imm=nbytes)


async def test_an_honest_writer_is_granted_and_may_change_its_mind(liar: Liar) -> None:
    _, peer, key = liar
    for op in (1, 2):
        await peer.say(ask(op, key))
        assert (await peer.hear(Kind.GRANT)).op == op
        await peer.say(Header(Kind.STOPPED, op=op))
    await peer.say(ask(3, key))
    await peer.hear(Kind.GRANT)
    await peer.say(Header(Kind.LANDED, op=3, imm=5))
    assert (await peer.hear(Kind.WRITE_ACK)).code == Status.OK


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 100_001), (100_000, 1), (2**64 - 1, 4)])
async def test_asking_out_of_bounds(liar: Liar, offset: int, nbytes: int) -> None:
    endpoint, peer, key = liar
    await peer.say(ask(1, key, offset, nbytes))
    assert (await peer.hear(Kind.WRITE_ACK)).code == Status.MALFORMED
    await cut(endpoint, peer)


async def test_asking_with_a_key_that_was_never_issued(liar: Liar) -> None:
    endpoint, peer, key = liar
    await peer.say(ask(1, key ^ 1))
    await cut(endpoint, peer)


async def test_asking_with_a_revoked_key_is_answered_so(liar: Liar) -> None:
    endpoint, peer, key = liar
    await endpoint.revoke(key)
    await peer.say(ask(1, key))
    assert (await peer.hear(Kind.WRITE_ACK)).code == Status.REVOKED
    await peer.say(Header(Kind.STOPPED, op=1))
    assert endpoint._routes.links


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (Header(Kind.LANDED, op=9), b""),
        (Header(Kind.STOPPED, op=9), b""),
        (Header(Kind.ASK, op=1), b""),
        (Header(Kind.GRANT, length=16, op=9), pack([(4096, 10)])),
        (Header(Kind.GRANT, length=15, op=9), bytes(15)),
        (Header(Kind.ATTACH, length=20), bytes(20)),
    ],
    ids=["landed", "stopped", "nothing", "granted", "half-an-extent", "garbage"],
)
async def test_frames_out_of_place(liar: Liar, header: Header, payload: bytes) -> None:
    endpoint, peer, _ = liar
    await peer.say(header, payload)
    await cut(endpoint, peer)


async def test_a_write_that_is_stopped_before_it_is_granted_leaves_nothing_behind(
    liar: Liar,
) -> None:
    endpoint, peer, key = liar
    (link,) = endpoint._routes.links
    assert isinstance(link, RdmaLink)
    await peer.send(ask(1, key).pack() + Header(Kind.STOPPED, op=1).pack())
    await until(lambda: link._asked._last_op == 1)
    await until(lambda: not link._asked._writes)
    await until(lambda: endpoint._poller.resting)
    await endpoint.revoke(key)
    assert link.lost is None


async def test_asking_twice_under_one_number(liar: Liar) -> None:
    endpoint, peer, key = liar
    await peer.say(ask(1, key))
    await peer.say(ask(1, key))
    await cut(endpoint, peer)


async def test_asking_for_more_than_the_window(liar: Liar) -> None:
    endpoint, peer, key = liar
    for op in range(WRITE_WINDOW + 1):
        await peer.say(ask(op + 1, key))
    await cut(endpoint, peer)


async def test_asking_before_the_agents_know_each_other(make: Make) -> None:
    endpoint = await make("endpoint", link_deadline_s=DEADLINE_S)
    assert isinstance(endpoint, RdmaEndpoint)
    peer = await RawPeer.dial(endpoint.address)
    await peer.say(ask(1, endpoint.register(Bytes(100_000))))
    await cut(endpoint, peer)
    peer.close()


@pytest.mark.parametrize("where", [[(4096, 50_001)], [(4096, 50_000)]], ids=["longer", "elsewhere"])
async def test_granting_what_cannot_be_written(liar: Liar, where: list[tuple[int, int]]) -> None:
    endpoint, peer, _ = liar
    (link,) = endpoint._routes.links
    writing = asyncio.ensure_future(endpoint.write(link.peer, 5, 0, [bytes(50_000)]))
    op = (await peer.hear(Kind.ASK)).op
    payload = pack(where)
    await peer.say(Header(Kind.GRANT, length=len(payload), op=op), payload)
    with pytest.raises(LinkError):
        await writing
    await cut(endpoint, peer)


async def test_a_liar_costs_others_nothing(liar: Liar, make: Make) -> None:
    endpoint, peer, _ = liar
    honest = await make("honest")
    region = Bytes(300_000)
    key = endpoint.register(region)
    data = random.Random(6).randbytes(region.nbytes)
    await honest.write(endpoint.address, key, 0, [bytes(region.nbytes)])
    writing = asyncio.ensure_future(honest.write(endpoint.address, key, 0, [data]))
    await peer.say(Header(Kind.LANDED, op=9))
    await writing
    assert region.memory == data


async def test_seeded_noise_harms_nobody_and_leaves_nothing_behind(make: Make) -> None:
    endpoint, honest = await make("endpoint"), await make("honest")
    assert isinstance(endpoint, RdmaEndpoint)
    revoked = endpoint.register(Bytes(10))
    await endpoint.revoke(revoked)
    scattered, pinned = Scattered(100_000, 100), Bytes(100_000)
    keys = [endpoint.register(scattered), endpoint.register(pinned), revoked, 3]
    region = Bytes(200_000)
    key = endpoint.register(region)
    draw = random.Random(12)
    agent = nixl.Agent("raw", "TLS=^cma,NET_DEVICES=lo")
    metadata = agent.metadata()
    for number in range(25):
        peer = await RawPeer.dial(endpoint.address, endpoint_id=f"raw{number}")
        noise = Header(Kind.ATTACH, length=len(metadata)).pack() + metadata
        noise += b"".join(_noise(draw, keys) for _ in range(draw.randrange(1, 40)))
        await peer.send(noise)
        data = draw.randbytes(region.nbytes)
        await honest.write(endpoint.address, key, 0, [data])
        assert region.memory == data
        peer.close()
    agent.close()
    await until(lambda: len(endpoint._routes.links) == 1)
    await until(lambda: endpoint._poller.resting)
    assert all(rooms.taken == 0 for rooms in endpoint._rooms)


def _noise(draw: random.Random, keys: list[int]) -> bytes:
    """Mostly right frames of a writer, with a lie now and then."""
    kind = draw.choice([Kind.ASK, Kind.ASK, Kind.LANDED, Kind.STOPPED, Kind.GRANT, Kind.ALIVE])
    if kind is Kind.GRANT and draw.random() < 0.8:
        kind = Kind.ASK
    payload = pack([(draw.randrange(2**64), 1)]) if kind is Kind.GRANT else b""
    key = draw.choice(keys[:2] * 9 + keys)
    imm = draw.choice([1, 60, 50_000, 2**64 - 1] if draw.random() < 0.1 else [20_000])
    header = Header(kind, 0, len(payload), draw.randrange(1, 99), key, draw.randrange(60_000), imm)
    data = bytearray(header.pack() + payload)
    if draw.random() < 0.03:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)
