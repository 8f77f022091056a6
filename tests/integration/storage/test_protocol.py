"""What a shard answers to clients that break the rules, die, or want more than there is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions
from dualpath.kvstore.volume import allocated_bytes
from dualpath.memory.arena import BufferRegion
from dualpath.storage import writes
from dualpath.transport.api import TransportError
from dualpath.wire import store as wire
from dualpath.wire.codec import Message
from dualpath.wire.types import Address

SIZE = 20_000
SPACE = wire.Namespace("model", SIZE)
Eventually = Callable[[Callable[[], bool | Awaitable[bool]]], Awaitable[None]]


def keys(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(16, "big") for number in numbers)


def block(key: bytes) -> bytes:
    return random.Random(key).randbytes(SIZE)


def write_open(op: int, *numbers: int, deadline_s: float = 30.0) -> wire.WriteOpen:
    sums = b"".join(block_checksum(keys(n), block(keys(n))) for n in numbers)
    depths = tuple(range(len(numbers)))
    return wire.WriteOpen(op, SPACE, keys(*numbers), sums, deadline_s, depths)


BROKEN: list[tuple[Message, str]] = [
    (wire.Match(1, SPACE, b"short"), "whole number"),
    (wire.Match(1, wire.Namespace("model", 0), keys(1)), "block_tokens"),
    (wire.Match(1, wire.Namespace("model", wire.MAX_BLOCK_BYTES + 1), keys(1)), "block_tokens"),
    (wire.Match(1, wire.Namespace("", SIZE), keys(1)), "fingerprint"),
    (wire.Match(1, wire.Namespace("m" * 600, SIZE), keys(1)), "fingerprint"),
    (wire.Match(1, SPACE, bytes(16 * (wire.MAX_KEYS + 1))), "may name"),
    (wire.StatRequest(1, wire.Namespace("m" * 600, SIZE)), "fingerprint"),
    (wire.Read(1, SPACE, keys(1, 2), 5, (0,), 1.0), "offsets"),
    (wire.Read(1, SPACE, keys(1), 5, (-1,), 1.0), "range"),
    (wire.Read(1, SPACE, keys(1), 5, (1 << 63,), 1.0), "range"),
    (wire.Read(1, SPACE, keys(1), 5, (0,), 0.0), "deadline"),
    (wire.Read(1, SPACE, keys(1), 5, (0,), float("nan")), "deadline"),
    (wire.WriteOpen(1, SPACE, keys(1), bytes(15), 1.0, (0,)), "checksums"),
    (wire.WriteOpen(1, SPACE, keys(1), bytes(16), -1.0, (0,)), "deadline"),
    (wire.WriteOpen(1, SPACE, keys(1), bytes(16), 1.0, (0, 1)), "depths"),
    (wire.WriteOpen(1, SPACE, keys(1), bytes(16), 1.0, (-1,)), "depth is out of range"),
]


@pytest.mark.parametrize(("message", "reason"), BROKEN)
async def test_what_breaks_the_rules_is_refused_with_a_sentence(
    bench: Any, message: Message, reason: str
) -> None:
    await bench.start()
    client = await bench.client()
    refused = await client.ask(message)
    assert isinstance(refused, wire.StoreRefused)
    assert reason in refused.reason
    assert (await client.ask(wire.StatRequest(2))).op == 2
    assert bench.idle()


async def test_garbage_is_refused_and_the_link_goes_on(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    with pytest.raises(TransportError):
        await client.endpoint.send(client.shard, b"\xc1garbage")
    assert (await client.ask(wire.StatRequest(1))).op == 1


async def test_calls_that_are_not_open_are_told_so(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    for message in (wire.Ping(7), wire.WriteCommit(7)):
        with pytest.raises(TransportError):
            await client.say(message)
    for late in (wire.CancelRead(7), wire.CancelWrite(7), wire.Release(7)):
        await client.say(late)


async def test_an_open_call_answers_pings_and_its_number_cannot_be_used_twice(bench: Any) -> None:
    await bench.start()
    client, other = await bench.client(), await bench.client("other")
    ready = await client.ask(write_open(7, 1))
    assert isinstance(ready, wire.WriteReady)
    await client.say(wire.Ping(7))
    with pytest.raises(TransportError):
        await other.say(wire.Ping(7))
    refused = await client.ask(write_open(7, 2))
    assert "open already" in refused.reason
    assert isinstance(await other.ask(write_open(7, 2)), wire.WriteReady)


async def test_a_write_is_readable_when_it_is_done_and_only_then(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    ready = await client.ask(write_open(1, 1, 2))
    for number, offset in zip((1, 2), ready.offsets, strict=True):
        await client.endpoint.write(client.shard, ready.region_key, offset, [block(keys(number))])
    assert (await client.ask(wire.Match(2, SPACE, keys(1, 2)))).present == b"\0\0"
    done = await client.ask(wire.WriteCommit(1))
    assert done.statuses == bytes([WriteStatus.STORED] * 2)
    assert (await client.ask(wire.Match(3, SPACE, keys(1, 2)))).present == b"\1\1"
    assert bench.idle()


async def test_a_block_that_does_not_match_its_checksum_is_not_stored(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    ready = await client.ask(write_open(1, 1, 2))
    await client.endpoint.write(
        client.shard, ready.region_key, ready.offsets[0], [block(keys(2)), block(keys(2))]
    )
    done = await client.ask(wire.WriteCommit(1))
    assert done.statuses == bytes([WriteStatus.NOT_STORED, WriteStatus.STORED])
    assert (await client.ask(wire.Match(2, SPACE, keys(1, 2)))).present == b"\0\1"


async def test_the_room_of_a_write_closes_with_its_commit(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    ready = await client.ask(write_open(1, 1))
    await client.endpoint.write(client.shard, ready.region_key, 0, [block(keys(1))])
    await client.ask(wire.WriteCommit(1))
    with pytest.raises(TransportError):
        await client.endpoint.write(client.shard, ready.region_key, 0, [block(keys(1))])


async def test_room_is_free_again_after_a_cancel_a_deadline_or_the_clients_death(
    bench: Any, eventually: Eventually
) -> None:
    await bench.start()
    client = await bench.client()
    await client.ask(write_open(1, 1))
    assert bench.pool("write_staging_bytes").used >= SIZE
    await client.say(wire.CancelWrite(1))
    await eventually(bench.idle)
    await client.ask(write_open(2, 1, deadline_s=0.05))
    await eventually(bench.idle)
    await client.ask(write_open(3, 1))
    await client.endpoint.close()
    await eventually(bench.idle)
    assert bench.shard.status().counters["blocks"] == 0


async def test_writers_beyond_the_bound_wait_a_while_and_are_then_told(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.start(staging_bytes=SIZE)
    client = await bench.client()
    await client.ask(write_open(1, 1))
    monkeypatch.setattr(writes, "ROOM_WAIT_S", 0.05)
    told = await client.ask(write_open(2, 2))
    assert (told.offsets, told.statuses) == ((-1,), bytes([WriteStatus.NOT_STORED]))
    monkeypatch.setattr(writes, "ROOM_WAIT_S", 20.0)
    await client.say(write_open(3, 3))
    await client.say(wire.CancelWrite(1))
    ready = await client.next()
    assert (ready.op, ready.offsets) == (3, (0,))


async def test_a_write_call_gets_room_for_one_batch(bench: Any) -> None:
    await bench.start()
    client = await bench.client()
    many = wire.WRITE_BATCH_BYTES // SIZE + 5
    ready = await client.ask(write_open(1, *range(many)))
    assert ready.statuses.count(WriteStatus.NOT_STORED) == 5
    assert ready.offsets.count(-1) == 5


@pytest.mark.parametrize("direct", [False, True])
async def test_many_readers_pass_through_little_memory(bench: Any, direct: bool) -> None:
    await bench.start(staging_bytes=3 * SIZE, options=DiskOptions(direct=direct))
    writer = await bench.store(SIZE, "writer")
    names = [keys(number) for number in range(40)]
    await writer.write(names, [memoryview(block(name)) for name in names], deadline_s=30)

    async def read(number: int) -> None:
        store = await bench.store(SIZE, f"reader-{number}")
        into = [bytearray(SIZE) for _ in names]
        statuses = await store.read(names, [memoryview(view) for view in into], deadline_s=30)
        assert statuses == [ReadStatus.FOUND] * 40
        assert all(view == block(name) for view, name in zip(into, names, strict=True))

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(read(number))
    assert bench.pool("read_staging_bytes").used == 0


async def test_blocks_land_where_they_were_asked_for_and_each_is_told_once(bench: Any) -> None:
    await bench.start()
    store, client = await bench.store(SIZE, "writer"), await bench.client()
    names = [keys(number) for number in range(12)]
    there = [name for number, name in enumerate(names) if number not in (4, 9)]
    await store.write(there, [memoryview(block(name)) for name in there], deadline_s=30)
    memory, told = bytearray(12 * SIZE), list[int]()
    # Neighbours from 0 to 7, but for one that is absent; then backwards.
    offsets = tuple(SIZE * place for place in (0, 1, 2, 3, 4, 5, 6, 7, 11, 10, 9, 8))
    region = BufferRegion(memoryview(memory), lambda imm: told.extend(wire.unpack_run(imm, 12)))
    region_key = client.endpoint.register(region)
    done = await client.ask(wire.Read(1, SPACE, b"".join(names), region_key, offsets, 30.0))
    assert sorted(told) == [number for number in range(12) if number not in (4, 9)]
    for number, (name, at) in enumerate(zip(names, offsets, strict=True)):
        found = number not in (4, 9)
        assert done.statuses[number] == (ReadStatus.FOUND if found else ReadStatus.ABSENT)
        assert memory[at : at + SIZE] == (block(name) if found else bytes(SIZE))
        if found:
            assert done.checksums[16 * number : 16 * number + 16] == block_checksum(
                name, block(name)
            )


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    ("run_bytes", "blocks"), [(3 * SIZE - 1, 2), (0, 1), (-SIZE, 1), (2**62, 3)]
)
async def test_a_write_of_a_read_brings_no_more_than_its_client_asks_for(
    bench: Any, run_bytes: int, blocks: int, direct: bool
) -> None:
    await bench.start(options=DiskOptions(direct=direct))
    store, client = await bench.store(SIZE, "writer"), await bench.client()
    names = [keys(number) for number in range(12)]
    await store.write(names, [memoryview(block(name)) for name in names], deadline_s=30)
    told = list[int]()
    region = BufferRegion(
        memoryview(bytearray(12 * SIZE)), lambda imm: told.append(len(wire.unpack_run(imm, 12)))
    )
    region_key, offsets = client.endpoint.register(region), tuple(range(0, 12 * SIZE, SIZE))
    question = wire.Read(1, SPACE, b"".join(names), region_key, offsets, 30.0, run_bytes=run_bytes)
    done = await client.ask(question)
    assert done.statuses == bytes([ReadStatus.FOUND] * 12)
    assert told == [blocks] * (12 // blocks)


async def test_a_read_whose_last_block_has_landed_is_over_whatever_waits_behind_it(
    bench: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of one client share so many turns; to end takes none."""
    shard = await bench.start()
    store, client = await bench.store(SIZE, "writer"), await bench.client()
    names = [keys(number) for number in range(4)]
    await store.write(names, [memoryview(block(name)) for name in names], deadline_s=30)
    offsets = tuple(range(0, 4 * SIZE, SIZE))
    regions = [
        client.endpoint.register(BufferRegion(memoryview(bytearray(4 * SIZE)))) for _ in range(4)
    ]
    under_way, may_go = list[int](), [asyncio.Event() for _ in regions]
    endpoint = shard._endpoint
    write = endpoint.write

    async def held(peer: Address, key: int, *more: Any, **options: Any) -> None:
        under_way.append(regions.index(key))
        await may_go[regions.index(key)].wait()
        await write(peer, key, *more, **options)

    monkeypatch.setattr(endpoint, "write", held)
    for op, region in enumerate(regions):
        await client.say(wire.Read(op, SPACE, b"".join(names), region, offsets, 30.0))
    await eventually(lambda: len(under_way) == 8)
    may_go[0].set()
    assert (await client.next()).op == 0
    for event in may_go:
        event.set()
    assert sorted([(await client.next()).op for _ in range(3)]) == [1, 2, 3]


async def test_a_read_into_a_closed_region_ends_at_once(bench: Any, eventually: Eventually) -> None:
    await bench.start()
    store, client = await bench.store(SIZE, "writer"), await bench.client()
    names = [keys(number) for number in range(30)]
    await store.write(names, [memoryview(block(name)) for name in names], deadline_s=30)

    class Nowhere:
        nbytes = 30 * SIZE

        def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
            raise AssertionError("closed regions are not written to")

        def on_write(self, imm: int) -> None:
            raise AssertionError("closed regions are not written to")

    region_key = client.endpoint.register(Nowhere())
    await client.endpoint.revoke(region_key)
    offsets = tuple(number * SIZE for number in range(30))
    done = await client.ask(wire.Read(1, SPACE, b"".join(names), region_key, offsets, 30.0))
    assert done.statuses == bytes([ReadStatus.FAILED] * 30)
    await eventually(bench.idle)


def leases(bench: Any) -> int:
    (used,) = (pool.used for pool in bench.shard.status().pools if pool.name == "leases")
    assert isinstance(used, int)
    return used


async def test_leases_count_until_released_or_over(bench: Any, eventually: Eventually) -> None:
    await bench.start()
    store, client = await bench.store(SIZE, "writer"), await bench.client()
    await store.write([keys(1)], [memoryview(block(keys(1)))], deadline_s=30)
    assert (await client.ask(wire.Match(1, SPACE, keys(1)))).lease == 0
    assert (await client.ask(wire.Match(2, SPACE, keys(2), 10.0))).lease == 0
    lease = (await client.ask(wire.Match(3, SPACE, keys(1, 2), 600.0))).lease
    await client.ask(wire.Match(4, SPACE, keys(1), 0.05))
    assert leases(bench) >= 1
    await eventually(lambda: leases(bench) == 1)
    await client.say(wire.Release(lease))
    assert leases(bench) == 0
    match = await store.match([keys(1)], lease_s=600.0)
    assert leases(bench) == 1
    await store.release(match)
    await eventually(lambda: leases(bench) == 0)


async def test_three_times_its_capacity_is_written_and_the_shard_keeps_to_it(bench: Any) -> None:
    await bench.start(options=DiskOptions(capacity_bytes=allocated_bytes(10, SIZE)))
    store = await bench.store(SIZE, "writer")
    names = [keys(number) for number in range(30)]
    blocks = [memoryview(block(name)) for name in names]
    chain = names[:4]
    for first in range(0, 30, 2):
        statuses = await store.write(
            names[first : first + 2], blocks[first : first + 2], deadline_s=30
        )
        assert statuses == [WriteStatus.STORED] * 2
        if first == 2:
            match = await store.match(chain, lease_s=600.0)
    counters = bench.shard.status().counters
    assert (counters["blocks"], counters["evicted"]) == (10, 20)
    # Leased, the oldest are there nevertheless.
    into = [memoryview(bytearray(SIZE)) for _ in chain]
    assert await store.read(chain, into, deadline_s=30) == [ReadStatus.FOUND] * 4
    await store.release(match)
    # Just read, they outlive those that were written later.
    await store.write([keys(100)], [memoryview(block(keys(100)))], deadline_s=30)
    assert (await store.match(chain)).blocks == 4


@pytest.mark.parametrize("after_s", [0, 0.001, 0.0014, 0.003, 0.01])
async def test_closing_a_shard_in_the_middle_of_everything_is_quick_and_clean(
    bench: Any, after_s: float
) -> None:
    await bench.start()
    store, client = await bench.store(SIZE, "store"), await bench.client()
    names = [keys(number) for number in range(200)]
    blocks = [memoryview(block(name)) for name in names]
    await store.write(names, blocks, deadline_s=30)
    await client.ask(write_open(1, 1000))
    into = [memoryview(bytearray(SIZE)) for _ in names]
    reading = asyncio.create_task(store.read(names, into, deadline_s=30))
    await asyncio.sleep(after_s)
    await bench.shard.close()
    assert set(await reading) <= {ReadStatus.FOUND, ReadStatus.FAILED}
    assert bench.idle()
