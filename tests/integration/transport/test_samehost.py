"""Writes that the target reads in the writer's memory."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import signal
import socket

import pytest
from tests.support.transport import (
    DEADLINE_S,
    SECRET,
    Bytes,
    Make,
    RawPeer,
    endpoints,
    peer_process,
    stop,
)
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic
from dualpath.memory.shared import SharedMemory
from dualpath.transport.api import LinkError, Revoked
from dualpath.transport.frames import END, Header, Kind, Status
from dualpath.transport.samehost import SameHostEndpoint, available, meeting
from dualpath.transport.samehost.link import SameHostLink
from dualpath.transport.samehost.segments import _EXTENT, Word
from dualpath.transport.samehost.sending import WINDOW_BYTES
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

WAYS = ["shared"]
pytestmark = pytest.mark.skipif(
    not available(), reason="this kernel cannot seal memory, or has no membarrier"
)
NBYTES = 1_000_000
NONCE = bytes(range(16))


@pytest.fixture
def memory() -> SharedMemory:
    made = SharedMemory("source", NBYTES)
    made.view[:] = random.Random(1).randbytes(NBYTES)
    return made


def link_of(endpoint: TcpEndpoint) -> SameHostLink:
    (link,) = endpoint._routes.links
    assert isinstance(link, SameHostLink)
    return link


async def test_payload_in_shared_memory_does_not_pass_the_socket(
    make: Make, memory: SharedMemory
) -> None:
    writer, target = await make("writer"), await make("target")
    writer.pin(memory.view, memory)
    region = Bytes(NBYTES)
    key = target.register(region)
    await TcpEndpoint.write(writer, target.address, key, 0, [memory.view], imm=1)
    assert region.memory == memory.view
    assert link_of(writer)._outbox.taken_bytes < 1000
    other = random.Random(2).randbytes(NBYTES)
    await TcpEndpoint.write(writer, target.address, key, 0, [other], imm=2)
    assert region.memory == other
    assert link_of(writer)._outbox.taken_bytes > NBYTES
    assert region.imms == [1, 2]
    assert target.nic.moved()[Lane.LOW, "rx"] >= 2 * NBYTES, "NICs are charged all the same"


async def test_both_ends_of_a_link_may_read_in_each_others_memory(
    make: Make, memory: SharedMemory
) -> None:
    ends = [await make("one"), await make("other")]
    regions = [Bytes(NBYTES), Bytes(NBYTES)]
    for end in ends:
        end.pin(memory.view, memory)
    await asyncio.gather(
        *(
            TcpEndpoint.write(a, b.address, b.register(region), 0, [memory.view])
            for a, b, region in zip(ends, ends[::-1], regions, strict=True)
        )
    )
    for end, region in zip(ends, regions, strict=True):
        assert region.memory == memory.view
        assert link_of(end)._outbox.taken_bytes < 1000


@pytest.mark.parametrize("plain", ["writer", "target"])
async def test_a_peer_that_knows_sockets_only_gets_it_all_through_them(
    make: Make, memory: SharedMemory, plain: str
) -> None:
    async with endpoints("tcp") as make_plain:
        made = {
            name: await (make_plain if name == plain else make)(name)
            for name in ("writer", "target")
        }
        made["writer"].pin(memory.view, memory)
        region = Bytes(NBYTES)
        key = made["target"].register(region)
        await TcpEndpoint.write(made["writer"], made["target"].address, key, 0, [memory.view])
        assert region.memory == memory.view


async def test_a_target_in_another_network_namespace_gets_it_through_the_socket(
    make: Make, memory: SharedMemory
) -> None:
    """Where the name leads nowhere, as it does there."""
    writer, target = await make("writer"), await make("target")
    assert isinstance(target, SameHostEndpoint)
    assert target._meeting is not None
    target._meeting.close()
    name, elsewhere = meeting.listen()
    elsewhere.close()
    target._meeting_name = name
    writer.pin(memory.view, memory)
    region = Bytes(NBYTES)
    await TcpEndpoint.write(
        writer, target.address, target.register(region), 0, [memory.view], imm=3
    )
    assert region.memory == memory.view


async def test_a_write_that_is_cancelled_ends_once_the_peer_has_read(
    make: Make, memory: SharedMemory
) -> None:
    async with peer_process(NBYTES, "shared") as (process, address, key):
        writer = await make("writer")
        writer.pin(memory.view, memory)
        await TcpEndpoint.write(writer, address, key, 0, [memory.view])
        stop(process)
        writing = asyncio.ensure_future(TcpEndpoint.write(writer, address, key, 0, [memory.view]))
        sender = link_of(writer)._sender
        await until(lambda: any(operation.reading for operation in sender._writes.values()))
        writing.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
            writing.cancel()
        assert not writing.done()
        process.send_signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert sender.under_way == 0


async def test_what_a_peer_reads_after_the_link_was_given_up_does_not_count(
    make: Make, memory: SharedMemory
) -> None:
    """The peer stands still with the frame before it, the link is cut, the memory used anew: then it goes on."""
    async with peer_process(NBYTES, "shared") as (process, address, key):
        writer = await make("writer", link_deadline_s=DEADLINE_S)
        writer.pin(memory.view, memory)
        await TcpEndpoint.write(writer, address, key, 0, [memory.view])
        stop(process)
        with pytest.raises(LinkError, match="silent"):
            await TcpEndpoint.write(writer, address, key, 0, [memory.view])
        memory.view[:] = bytes(NBYTES)
        process.send_signal(signal.SIGCONT)
        back = Bytes(NBYTES)
        # It carries the number of writes that have counted there.
        order = b"push %d" % writer.register(back)
        while True:
            try:
                await writer.send(address, order)
            except LinkError:
                continue
            break
        await until(lambda: bool(back.imms))
        assert back.imms == [1]


async def test_a_message_overtakes_what_a_slow_peer_has_not_read(
    make: Make, memory: SharedMemory
) -> None:
    came: list[bytes] = []

    async def take(peer: Address, message: bytes) -> None:
        came.append(message)

    writer = await make("writer")
    target = await make("target", take, nic=PacedNic("target", 50e6))
    writer.pin(memory.view, memory)
    region = Bytes(NBYTES)
    key = target.register(region)
    count = 3 * WINDOW_BYTES // NBYTES
    writes = [
        asyncio.ensure_future(
            TcpEndpoint.write(writer, target.address, key, 0, [memory.view], imm=number)
        )
        for number in range(count)
    ]
    await until(lambda: bool(region.imms))
    await writer.send(target.address, b"ahead")
    assert came == [b"ahead"]
    assert len(region.imms) < count, "it waited for what was told already, and not for the rest"
    await asyncio.gather(*writes)
    assert sorted(region.imms) == list(range(count))
    assert region.memory == memory.view


async def test_writes_to_a_region_that_is_revoked_meanwhile_stop(
    make: Make, memory: SharedMemory
) -> None:
    writer, target = await make("writer", nic=PacedNic("writer", 20e6)), await make("target")
    writer.pin(memory.view, memory)
    region = Bytes(NBYTES)
    key = target.register(region)
    writing = asyncio.ensure_future(
        TcpEndpoint.write(writer, target.address, key, 0, [memory.view])
    )
    await until(lambda: any(region.memory))
    await target.revoke(key)
    held = bytes(region.memory)
    with pytest.raises(Revoked):
        await writing
    assert region.memory == held
    assert region.imms == []


async def test_closing_gives_every_descriptor_back(memory: SharedMemory) -> None:
    region = Bytes(NBYTES)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        async with endpoints("shared") as make:
            writer, target = await make("writer"), await make("target")
            writer.pin(memory.view, memory)
            key = target.register(region)
            await TcpEndpoint.write(writer, target.address, key, 0, [memory.view])
            link = link_of(target)
            assert link._mapped is not None
        assert link._mapped is None
        del make, writer, target, link
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_link_does_without_where_the_writer_can_open_no_more_files(
    make: Make, memory: SharedMemory
) -> None:
    writer, target = await make("writer"), await make("target")
    writer.pin(memory.view, memory)
    region = Bytes(NBYTES)
    key = target.register(region)
    await TcpEndpoint.write(writer, target.address, key, 0, [b"the link is there"])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        await TcpEndpoint.write(writer, target.address, key, 0, [memory.view], imm=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert region.memory == memory.view
    assert region.imms == [0, 1]


# ── peers that lie ─────────────────────────────────────────────────────────────────────────────────
async def raw_writer(target: TcpEndpoint, memory: SharedMemory | None) -> RawPeer:
    """A peer that has handed `memory` over."""
    peer = await RawPeer.dial(target.address, nonce=NONCE)
    assert isinstance(target, SameHostEndpoint)
    if memory is not None:
        word = Word()
        fds = [word.shared.fd, memory.fd]
        assert await meeting.offer(SECRET, target._meeting_name, NONCE.hex(), fds)
    return peer


async def test_a_well_formed_pull_lands(make: Make, memory: SharedMemory) -> None:
    target = await make("target")
    region = Bytes(100)
    peer = await raw_writer(target, memory)
    where = _EXTENT.pack(0, 60, 1000) + _EXTENT.pack(0, 40, 5)
    await peer.say(Header(Kind.PULL, END, len(where), 1, target.register(region), 0, 9), where)
    assert (await peer.hear(Kind.WRITE_ACK)).code == Status.OK
    assert region.memory == bytes(memory.view[1000:1060]) + bytes(memory.view[5:45])
    assert region.imms == [9]
    peer.close()


@pytest.mark.parametrize(
    ("shares", "where"),
    [
        (False, _EXTENT.pack(0, 10, 0)),
        (True, _EXTENT.pack(1, 10, 0)),
        (True, _EXTENT.pack(0, 10, NBYTES - 9)),
        (True, _EXTENT.pack(0, 101, 0)),
        (True, _EXTENT.pack(0, 10, 0)[:-1]),
        (True, b""),
    ],
    ids=["before sharing", "no segment", "past its end", "past the region", "cut", "empty"],
)
async def test_a_peer_that_pulls_what_it_may_not_is_cut(
    make: Make, memory: SharedMemory, shares: bool, where: bytes
) -> None:
    target = await make("target")
    region = Bytes(100)
    peer = await raw_writer(target, memory if shares else None)
    await peer.say(Header(Kind.PULL, END, len(where), 1, target.register(region)), where)
    await peer.closed()
    await until(lambda: not target._routes.links)
    assert not any(region.memory)
    assert region.imms == []
    peer.close()


async def test_memory_of_who_does_not_know_the_secret_is_refused(
    make: Make, memory: SharedMemory
) -> None:
    target = await make("target")
    peer = await raw_writer(target, None)
    assert isinstance(target, SameHostEndpoint)
    word = Word()
    fds, name, link_id = [word.shared.fd, memory.fd], target._meeting_name, NONCE.hex()
    assert not await meeting.offer(b"another", name, link_id, fds)
    assert not await meeting.offer(SECRET, name, link_id, fds[:1])
    assert await meeting.offer(SECRET, name, link_id, fds)
    assert not await meeting.offer(SECRET, name, link_id, fds), "not a second time"
    peer.close()


async def test_memory_for_a_link_that_never_comes_is_refused(
    make: Make, memory: SharedMemory
) -> None:
    target = await make("target", transfer_deadline_s=DEADLINE_S)
    assert isinstance(target, SameHostEndpoint)
    name, word = target._meeting_name, Word()
    assert not await meeting.offer(SECRET, name, NONCE.hex(), [word.shared.fd, memory.fd])
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect(f"\0{name}")
    stranger.send(b"x")
    await until(lambda: target._meetings == 0)
    stranger.close()
