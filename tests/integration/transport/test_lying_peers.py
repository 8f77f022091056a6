"""A peer that knows the secret and misbehaves loses its link and is named; nobody else notices.

In every test an honest peer's writes are under way, and each is verified byte by byte.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.transport import Bytes, Make, RawPeer
from tests.support.wait import until

from dualpath.lanes import Lane
from dualpath.transport.api import LinkError, PeerRefused
from dualpath.transport.frames import (
    END,
    MAX_WRITE_BYTES,
    MESSAGE_WINDOW,
    Header,
    Kind,
    Status,
)
from dualpath.transport.handshake import Proof, Refusal
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.codec import MAX_MESSAGE_BYTES, Decoder, encode
from dualpath.wire.types import Address

PROOF = encode(Proof(b"a message that this handler takes"))


class Bystander:
    """An honest peer that writes and verifies until it is cancelled."""

    def __init__(self, me: TcpEndpoint, target: TcpEndpoint) -> None:
        self.rounds = 0
        self._me = me
        self._target = target
        self._region = Bytes(300_000)
        self._key = target.register(self._region)

    async def run(self) -> None:
        draw = random.Random(1)
        while True:
            data = draw.randbytes(self._region.nbytes)
            lane = Lane(self.rounds % 2)
            await self._me.write(self._target.address, self._key, 0, [data], lane=lane, imm=7)
            assert self._region.memory == data
            self.rounds += 1
            assert len(self._region.imms) == self.rounds


@dataclass
class Scene:
    """An endpoint, a raw peer with a link to it, a region there with its key, and an honest peer at work."""

    endpoint: TcpEndpoint
    peer: RawPeer
    region: Bytes
    key: int
    bystander: Bystander
    working: asyncio.Task[None]

    def raw_links(self) -> int:
        return sum(link.peer.endpoint_id == "raw" for link in self.endpoint._routes.links)

    async def unharmed(self) -> None:
        """The honest peer goes on, over the links that it had."""
        rounds = self.bystander.rounds
        await until(lambda: self.bystander.rounds >= rounds + 2 or self.working.done())
        assert not self.working.done()

    @asynccontextmanager
    async def cut(self, reason: str) -> AsyncIterator[None]:
        """What happens inside costs the peer its link, and the log says whose and why."""
        with capture_logs() as lines:
            yield
            async with asyncio.timeout(20):
                await self.peer.closed()
            await until(lambda: not self.raw_links())
        named = [
            str(line.get("reason", ""))
            for line in lines
            if line["event"] in ("peer_misbehaves", "link_cut", "link_down")
            and "raw at" in line["peer"]
        ]
        assert any(re.search(reason, text) for text in named), named
        await self.unharmed()


@pytest.fixture
async def linked(make: Make) -> AsyncIterator[Scene]:
    endpoint = await make("endpoint", link_deadline_s=1.0)
    honest = await make("honest")
    bystander = Bystander(honest, endpoint)
    working = asyncio.ensure_future(bystander.run())
    await until(lambda: bystander.rounds >= 2 or working.done())
    links = set(honest._routes.links)
    region = Bytes(1000)
    peer = await RawPeer.dial(endpoint.address)
    scene = Scene(endpoint, peer, region, endpoint.register(region), bystander, working)
    await until(lambda: scene.raw_links() == 1)
    yield scene
    await scene.unharmed()
    assert honest._routes.links == links
    peer.close()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@contextmanager
def refused(code: str, who: str) -> Iterator[None]:
    """What happens inside gets no link, and the log says why and to whom."""
    with capture_logs() as lines, pytest.raises(Refusal) as caught:
        yield
    assert caught.value.code == code
    (line,) = [line for line in lines if line["event"] == "peer_refused"]
    assert line["code"] == code
    assert who in line["reason"]


async def test_an_honest_raw_peer_is_served(linked: Scene) -> None:
    peer, region, key = linked.peer, linked.region, linked.key
    await peer.say(Header(Kind.WRITE, 0, 4, 1, key, 10), b"abcd")
    await peer.say(Header(Kind.WRITE, END, 4, 1, key, 14, 7), b"efgh")
    ack = await peer.hear(Kind.WRITE_ACK)
    assert (ack.op, ack.code) == (1, Status.OK)
    assert region.memory[10:18] == b"abcdefgh"
    assert region.imms == [7]


# ── lies about keys ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("forged", ["a neighbour of an open one", "nothing", "beyond 63 bits"])
async def test_a_key_that_was_never_issued(linked: Scene, forged: str) -> None:
    keys = {"a neighbour of an open one": linked.key ^ 1, "nothing": 0, "beyond 63 bits": 2**64 - 1}
    async with linked.cut("a write for key .* never issued"):
        await linked.peer.say(Header(Kind.WRITE, END, 4, 1, keys[forged], 0), b"abcd")
        assert (await linked.peer.hear(Kind.WRITE_ACK)).code == Status.MALFORMED


async def test_a_key_of_another_process(linked: Scene, make: Make) -> None:
    other = await make("other")
    region = Bytes(1000)
    key = other.register(region)
    async with linked.cut("never issued"):
        await linked.peer.say(Header(Kind.WRITE, END, 4, 1, key, 0), b"abcd")
    assert not any(region.memory)


async def test_a_revoked_key_is_drained_and_costs_nothing(linked: Scene) -> None:
    await linked.endpoint.revoke(linked.key)
    for op in (1, 2, 3):
        await linked.peer.say(Header(Kind.WRITE, END, 4, op, linked.key, 0), b"abcd")
        ack = await linked.peer.hear(Kind.WRITE_ACK)
        assert (ack.op, ack.code) == (op, Status.REVOKED)
    assert not any(linked.region.memory)
    assert linked.raw_links() == 1


# ── lies about lengths and offsets ─────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1001), (1000, 1), (1001, 0), (2**64 - 1, 4), (2**64 - 1, 0)]
)
async def test_a_write_out_of_bounds(linked: Scene, offset: int, length: int) -> None:
    async with linked.cut("a write to .* of a region of 1000 bytes"):
        await linked.peer.say(Header(Kind.WRITE, END, length, 1, linked.key, offset))
        assert (await linked.peer.hear(Kind.WRITE_ACK)).code == Status.MALFORMED
    assert not any(linked.region.memory)
    assert linked.region.imms == []


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (Kind.WRITE, MAX_WRITE_BYTES + 1),
        (Kind.WRITE, 2**32 - 1),
        (Kind.MESSAGE, MAX_MESSAGE_BYTES + 1),
        (Kind.WRITE_ACK, 1),
        (Kind.ALIVE, 4),
    ],
)
async def test_a_frame_that_is_longer_than_its_kind_may_be(
    linked: Scene, kind: Kind, length: int
) -> None:
    async with linked.cut(f"a {kind.name} frame of {length} bytes"):
        await linked.peer.say(Header(kind, 0, length, 1, linked.key))


async def test_a_frame_that_says_less_than_comes(linked: Scene) -> None:
    async with linked.cut("a frame begins with"):
        await linked.peer.say(Header(Kind.WRITE, 0, 4, 1, linked.key, 0), b"abcd" + b"e" * 40)
    assert linked.region.memory[:5] == b"abcd\0"


async def test_a_frame_that_says_more_than_comes(linked: Scene) -> None:
    async with linked.cut("silent for 1 s"):
        await linked.peer.say(Header(Kind.WRITE, END, 100, 1, linked.key, 0), b"half")
    assert linked.region.imms == []


async def test_the_memory_is_free_at_once_though_the_peer_stops_in_mid_frame(
    linked: Scene,
) -> None:
    peer, region = linked.peer, linked.region
    await peer.say(Header(Kind.WRITE, END, 100, 1, linked.key, 0), b"half")
    await until(lambda: region.memory[:4] == b"half")
    await linked.endpoint.revoke(linked.key)
    region.memory[:] = bytes(1000)
    await peer.send(b"x" * 96)
    ack = await peer.hear(Kind.WRITE_ACK)
    assert ack.code == Status.REVOKED
    assert not any(region.memory)
    assert region.imms == []


# ── lies about versions ────────────────────────────────────────────────────────────────────────────
async def test_a_hello_of_another_version(linked: Scene) -> None:
    with refused("version", "protocol version 99"):
        await RawPeer.dial(linked.endpoint.address, endpoint_id="liar", protocol=99)


async def test_a_frame_of_another_version_after_the_handshake(linked: Scene) -> None:
    async with linked.cut("a frame begins with 0xd9a8"):
        frame = Header(Kind.WRITE, END, 4, 1, linked.key).pack()
        await linked.peer.send(b"\xa8" + frame[1:] + b"abcd")


# ── lies about identity and incarnation ────────────────────────────────────────────────────────────
async def test_a_dialer_that_means_a_life_that_is_over(linked: Scene) -> None:
    with refused("incarnation", "which liar dialed, is gone"):
        await RawPeer.dial(linked.endpoint.address, endpoint_id="liar", target_incarnation="0" * 24)


async def test_a_dialer_that_means_somebody_else(linked: Scene) -> None:
    with refused("identity", "liar dialed somebody, but endpoint listens here"):
        await RawPeer.dial(linked.endpoint.address, endpoint_id="liar", target_id="somebody")


async def test_the_earlier_life_of_a_linked_peer(linked: Scene) -> None:
    """`linked` sees that the later one keeps its links."""
    with refused("incarnation", "honest has restarted: life 0 is over"):
        await RawPeer.dial(linked.endpoint.address, sender=Address("honest", "0", "127.0.0.1", 9))


async def test_the_earlier_life_that_is_linked_still_is_cut_when_the_later_comes(
    linked: Scene,
) -> None:
    async with linked.cut("a later life of it is here"):
        later = await RawPeer.dial(
            linked.endpoint.address, sender=Address("raw", "2", "127.0.0.1", 9)
        )
        await linked.peer.closed()
        await later.say(Header(Kind.WRITE, END, 4, 1, linked.key, 0), b"abcd")
        assert (await later.hear(Kind.WRITE_ACK)).code == Status.OK
        with refused("incarnation", "raw has restarted: life 1 is over, 2 is linked"):
            await RawPeer.dial(linked.endpoint.address)
        later.close()


async def test_a_listener_that_is_the_earlier_life_is_not_used(make: Make) -> None:
    """The later one dialed this side; somebody else still knows the address of the earlier."""
    me = await make("me")
    earlier, later = await make("peer"), await make("peer")
    await later.send(me.address, b"m")
    with pytest.raises(PeerRefused, match="stop the older process"):
        await me.send(earlier.address, b"m")
    await me.send(later.address, b"m")
    await until(lambda: not earlier._routes.links)


async def test_a_listener_that_answers_on_another_lane(make: Make) -> None:
    me, peer = await make("me"), await make("peer")
    hello = peer._greeter._hello
    object.__setattr__(
        peer._greeter,
        "_hello",
        lambda lane, target: msgspec.structs.replace(hello(lane, target), lane=int(Lane.HIGH)),
    )
    with pytest.raises(PeerRefused, match="on another lane"):
        await me.send(peer.address, b"m", lane=Lane.LOW)
    assert not me._routes.links


# ── lies about what was done ───────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (Header(Kind.WRITE_ACK, Status.OK, op=99), "operation 99 was acknowledged but never begun"),
        (Header(Kind.MESSAGE_ACK, Status.OK, op=99), "operation 99 was acknowledged but never"),
        (Header(Kind.WRITE_ACK, 77, op=1), "of status 77 do not exist"),
        (Header(Kind.HELLO), "a HELLO frame came after the handshake"),
    ],
)
async def test_frames_that_have_no_place(linked: Scene, header: Header, reason: str) -> None:
    async with linked.cut(reason):
        await linked.peer.say(header)


async def test_messages_that_cannot_be_read_cost_the_link_and_one_line(make: Make) -> None:
    decode = Decoder(Proof)
    taken: list[bytes] = []

    async def take(peer: Address, message: bytes) -> None:
        taken.append(decode(message).mac)

    endpoint = await make("endpoint", take)
    peer = await RawPeer.dial(endpoint.address)
    await peer.say(Header(Kind.MESSAGE, 0, len(PROOF), 1), PROOF)
    await peer.hear(Kind.MESSAGE_ACK)
    with capture_logs() as lines:
        await peer.send(
            b"".join(
                Header(Kind.MESSAGE, 0, 4, op).pack() + b"\xc1\xc1\xc1\xc1" for op in range(2, 60)
            )
            + Header(Kind.MESSAGE, 0, len(PROOF), 60).pack()
            + PROOF
        )
        async with asyncio.timeout(20):
            await peer.closed()
        await until(lambda: not endpoint._routes.links)
    loud = [line for line in lines if line["log_level"] not in ("debug", "info")]
    (line,) = loud
    assert line["event"] == "peer_misbehaves"
    assert "raw at" in line["peer"]
    assert "cannot be read" in line["reason"]
    assert len(taken) == 1
    peer.close()


async def test_more_messages_than_the_window(make: Make) -> None:
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


async def test_an_acknowledgement_of_what_was_not_sent_yet(linked: Scene, transport: str) -> None:
    me = Address("raw", "1", "127.0.0.1", 9)
    async with linked.cut("operation 1 was acknowledged before it was sent"):
        writing = asyncio.ensure_future(linked.endpoint.write(me, 5, 0, [bytes(50_000_000)]))
        await linked.peer.hear(Kind.WRITE if transport == "tcp" else Kind.ATTACH)
        await linked.peer.say(Header(Kind.WRITE_ACK, Status.OK, op=1))
        with pytest.raises(LinkError):
            await writing


async def test_a_peer_that_says_a_write_was_malformed(linked: Scene) -> None:
    me = Address("raw", "1", "127.0.0.1", 9)
    writing = asyncio.ensure_future(linked.endpoint.write(me, 5, 0, [b"x"]))
    await linked.peer.hear(Kind.WRITE)
    await linked.peer.say(Header(Kind.WRITE_ACK, Status.MALFORMED, op=1))
    with pytest.raises(LinkError, match="never issued"):
        await writing


async def test_a_peer_that_asks_for_acknowledgements_and_never_reads_them(linked: Scene) -> None:
    ask = Header(Kind.WRITE, END, 0, 1, linked.key, 0).pack() * 1000

    async def flood() -> None:
        while True:
            await linked.peer.send(ask)

    async with linked.cut("does not read the acknowledgements"):
        with pytest.raises(OSError):
            await flood()
