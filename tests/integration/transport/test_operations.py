"""Writes and messages between endpoints of one process."""

from __future__ import annotations

import asyncio
import random
import tempfile
from functools import partial

import pytest
from tests.support.transport import EVERY_WAY, Bytes, Make, Received, Scattered
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic
from dualpath.memory.file_part import FilePart
from dualpath.transport.api import Buffer, LinkError, Revoked, TransportError
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.codec import MAX_MESSAGE_BYTES
from dualpath.wire.types import Address

WAYS = EVERY_WAY


async def test_a_write_lands_where_it_was_meant_to(make: Make) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    region = Bytes(3_000_000)
    key = receiver.register(region)
    data = random.Random(1).randbytes(2_000_000)
    pieces: list[Buffer] = [data[:7], bytearray(data[7:900_000]), memoryview(data)[900_000:]]
    await sender.write(receiver.address, key, 500_000, pieces, imm=42)
    assert region.memory[500_000:2_500_000] == data
    assert not any(region.memory[:500_000])
    assert not any(region.memory[2_500_000:])
    assert region.imms == [42]


async def test_parts_of_files_land_as_memory_does_where_the_endpoint_sends_files(
    make: Make,
) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    region = Bytes(3_000_000)
    key = receiver.register(region)
    data = random.Random(1).randbytes(2_000_000)
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(data)
        fd = file.fileno()
        parts = [FilePart(fd, 900_000, 1_100_000), FilePart(fd, 0, 7), FilePart(fd, 7, 899_993)]
        writing = sender.write(receiver.address, key, 500_000, parts, imm=42)
        if not sender.sends_files:
            with pytest.raises(ValueError, match="memory, not files"):
                await writing
            return
        await writing
    assert region.memory[500_000:2_500_000] == data[900_000:] + data[:900_000]
    assert region.imms == [42]


async def test_a_write_of_nothing_carries_its_immediate_data(make: Make) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    region = Bytes(10)
    await sender.write(receiver.address, receiver.register(region), 10, [], imm=(1 << 64) - 1)
    assert region.imms == [(1 << 64) - 1]


async def test_many_concurrent_writes_in_both_directions_all_land(make: Make) -> None:
    left, right = await make("left"), await make("right")
    size, count = 300_000, 24
    regions = {left: Bytes(size * count), right: Scattered(size * count, 4096)}
    keys = {endpoint: endpoint.register(region) for endpoint, region in regions.items()}
    draw = random.Random(2)
    data = {endpoint: draw.randbytes(size * count) for endpoint in regions}
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            for source, target in ((left, right), (right, left)):
                part = memoryview(data[source])[number * size : (number + 1) * size]
                lane = Lane(number % 2)
                group.create_task(
                    source.write(
                        target.address, keys[target], number * size, [part], lane=lane, imm=number
                    )
                )
    assert regions[left].memory == data[right]
    scattered = regions[right]
    assert isinstance(scattered, Scattered)
    assert scattered.content() == data[left]
    assert sorted(scattered.imms) == sorted(regions[left].imms) == list(range(count))


async def test_hundreds_of_writes_at_once_land_at_a_slow_receiver(make: Make) -> None:
    sender, receiver = await make("sender"), await make("receiver", nic=PacedNic("receiver", 30e6))
    size, count = 10_000, 600
    region = Bytes(size * count)
    key = receiver.register(region)
    data = random.Random(7).randbytes(region.nbytes)
    async with asyncio.TaskGroup() as group:
        for start in range(0, region.nbytes, size):
            piece = memoryview(data)[start : start + size]
            group.create_task(sender.write(receiver.address, key, start, [piece], imm=start))
    assert region.memory == data
    assert sorted(region.imms) == list(range(0, region.nbytes, size))


async def test_messages_arrive_in_order_with_their_senders_address(make: Make) -> None:
    received: Received = []

    async def take(peer: Address, message: bytes) -> None:
        received.append((peer, message))

    sender, receiver = await make("sender"), await make("receiver", take)
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(sender.send(receiver.address, b"%d" % number))
    assert received == [(sender.address, b"%d" % number) for number in range(300)]


async def test_the_longest_message_arrives_over_a_slow_nic(make: Make) -> None:
    received: Received = []

    async def take(peer: Address, message: bytes) -> None:
        received.append((peer, message))

    sender = await make("sender", nic=PacedNic("sender", 20e6))
    receiver = await make("receiver", take)
    message = random.Random(3).randbytes(MAX_MESSAGE_BYTES)
    await sender.send(receiver.address, message)
    assert received == [(sender.address, message)]
    with pytest.raises(ValueError, match="at most"):
        await sender.send(receiver.address, message + b"1")


async def test_the_answer_goes_over_the_connection_that_was_dialed(make: Make) -> None:
    region = Bytes(1000)
    server = await make("server")

    async def answer(peer: Address, message: bytes) -> None:
        await server.write(peer, int.from_bytes(message, "big"), 0, [b"x" * 1000])

    client = await make("client")
    server_with_handler = await make("shard", answer)
    server = server_with_handler
    key = client.register(region)
    anyone = Address("shard", "", server.address.host, server.address.port)
    await client.send(anyone, key.to_bytes(8, "big"))
    assert region.memory == b"x" * 1000
    assert len(client._routes.links) == len(server._routes.links) == 1


async def test_a_handler_that_raises_refuses_the_message_and_keeps_the_link(make: Make) -> None:
    async def refuse(peer: Address, message: bytes) -> None:
        if message == b"bad":
            raise RuntimeError("no")

    sender, receiver = await make("sender"), await make("receiver", refuse)
    with pytest.raises(TransportError, match="receiver") as caught:
        await sender.send(receiver.address, b"bad")
    assert not isinstance(caught.value, LinkError)
    await sender.send(receiver.address, b"good")


async def test_a_busy_handler_does_not_hold_up_writes(make: Make) -> None:
    release = asyncio.Event()

    async def wait(peer: Address, message: bytes) -> None:
        await release.wait()

    sender, receiver = await make("sender"), await make("receiver", wait)
    region = Bytes(1_000_000)
    key = receiver.register(region)
    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(sender.send(receiver.address, b"m"))
        await sender.write(receiver.address, key, 0, [b"y" * 1_000_000])
        assert region.memory == b"y" * 1_000_000
        release.set()


async def test_writing_to_a_revoked_region_says_so_and_harms_nobody(make: Make) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    gone, open_region = Bytes(5_000_000), Bytes(5_000_000)
    gone_key, key = receiver.register(gone), receiver.register(open_region)
    await receiver.revoke(gone_key)
    data = b"z" * 5_000_000
    results = await asyncio.gather(
        sender.write(receiver.address, gone_key, 0, [data]),
        sender.write(receiver.address, key, 0, [data]),
        return_exceptions=True,
    )
    assert isinstance(results[0], Revoked)
    assert results[1] is None
    assert open_region.memory == data
    assert not any(gone.memory)
    assert gone.imms == []
    assert len(sender._routes.links) == 1


async def test_after_revoke_returns_nothing_is_written_any_more(make: Make) -> None:
    sender = await make("sender", nic=PacedNic("sender", 50e6))
    receiver = await make("receiver")
    region, other = Bytes(20_000_000), Bytes(1000)
    key, other_key = receiver.register(region), receiver.register(other)
    writing = asyncio.ensure_future(
        sender.write(receiver.address, key, 0, [b"\xff" * region.nbytes])
    )
    await until(lambda: any(region.memory[:1]))
    await receiver.revoke(key)
    region.memory[:] = bytes(region.nbytes)
    with pytest.raises(Revoked):
        await writing
    await sender.write(receiver.address, other_key, 0, [b"o" * 1000])
    assert not any(region.memory)
    assert region.imms == []
    assert other.memory == b"o" * 1000


async def test_a_cancelled_write_never_counts_and_harms_nobody(make: Make) -> None:
    sender = await make("sender", nic=PacedNic("sender", 50e6))
    receiver = await make("receiver")
    region, other = Bytes(20_000_000), Bytes(3_000_000)
    key, other_key = receiver.register(region), receiver.register(other)
    source = bytearray(b"\x01" * region.nbytes)
    writing = asyncio.ensure_future(sender.write(receiver.address, key, 0, [source], imm=1))
    good = random.Random(4).randbytes(other.nbytes)
    beside = asyncio.ensure_future(sender.write(receiver.address, other_key, 0, [good], imm=2))
    await until(lambda: any(region.memory[:1]))
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    # Nobody reads the source any more: what arrives later shows what it held before.
    source[:] = b"\x02" * len(source)
    await beside
    await sender.write(receiver.address, other_key, 0, [good], imm=3)
    assert 2 not in region.memory
    assert 0 in region.memory
    assert region.imms == []
    assert other.memory == good
    assert other.imms == [2, 3]


async def test_cancelling_some_of_many_transfers_leaves_every_byte_of_the_others(
    make: Make,
) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    draw = random.Random(6)
    size, count = 700_000, 16
    for _ in range(2):
        regions = [Bytes(size) for _ in range(count)]
        data = [draw.randbytes(size) for _ in range(count)]
        writes = [
            asyncio.ensure_future(
                sender.write(
                    receiver.address, receiver.register(region), 0, [part], lane=Lane(n % 2), imm=n
                )
            )
            for n, (region, part) in enumerate(zip(regions, data, strict=True))
        ]
        doomed = draw.sample(range(count), count // 2)
        for n in doomed:
            for _ in range(draw.randrange(8)):
                await asyncio.sleep(0)
            writes[n].cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        for n, (write, region) in enumerate(zip(writes, regions, strict=True)):
            if not write.cancelled():
                assert write.result() is None
                assert region.memory == data[n]
                assert region.imms == [n]
            else:
                assert n in doomed
    assert len(sender._routes.links) == 2


async def test_cancelling_at_any_moment_leaves_the_link_whole(make: Make) -> None:
    sender, receiver = await make("sender"), await make("receiver")
    region = Bytes(4_000_000)
    key = receiver.register(region)
    draw = random.Random(5)
    data = draw.randbytes(region.nbytes)
    for _ in range(60):
        tasks = [
            asyncio.ensure_future(sender.write(receiver.address, key, 0, [data])),
            asyncio.ensure_future(sender.write(receiver.address, key, 0, [data])),
            asyncio.ensure_future(sender.send(receiver.address, data[: draw.randrange(500_000)])),
        ]
        for _ in range(draw.randrange(12)):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await sender.write(receiver.address, key, 0, [data])
    assert region.memory == data
    for _ in range(100):
        await sender.send(receiver.address, b"m")
    assert len(sender._routes.links) == len(receiver._routes.links) == 1
    (link,) = sender._routes.links
    assert link._sender.under_way == 0


async def test_dialing_each_other_at_once_makes_one_link(make: Make) -> None:
    for number in range(20):
        left, right = await make(f"left{number}"), await make(f"right{number}")
        async with asyncio.TaskGroup() as group:
            for source, target in ((left, right), (right, left)) * 3:
                group.create_task(source.send(target.address, b"hello"))
        await until(partial(_have_one_link, left, right))


def _have_one_link(*endpoints: TcpEndpoint) -> bool:
    return all(len(endpoint._routes.links) == 1 for endpoint in endpoints)


async def test_closing_ends_what_is_under_way(make: Make) -> None:
    async def forever(peer: Address, message: bytes) -> None:
        await asyncio.Event().wait()

    sender, receiver = await make("sender"), await make("receiver", forever)
    sending = asyncio.ensure_future(sender.send(receiver.address, b"m"))
    await until(lambda: bool(receiver._routes.links))
    await receiver.close()
    with pytest.raises(LinkError):
        await sending
    with pytest.raises(LinkError):
        await sender.send(receiver.address, b"m")
    with pytest.raises(LinkError):
        await receiver.send(sender.address, b"m")
