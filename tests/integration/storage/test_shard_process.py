"""A shard in a process of its own: what clients see when it, its files or its host misbehave."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.stored import flip

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.shards import ShardStore

SIZE = 10_000
FOUND, ABSENT, CORRUPT, FAILED = ReadStatus
Eventually = Callable[[Callable[[], bool | Awaitable[bool]]], Awaitable[None]]


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def block(key: bytes, size: int) -> memoryview:
    return memoryview(random.Random(key).randbytes(size))


async def write(store: ShardStore, *numbers: int, deadline_s: float = 30) -> list[WriteStatus]:
    names, size = keys(*numbers), store.namespace.block_bytes
    return await store.write(names, [block(name, size) for name in names], deadline_s=deadline_s)


async def read(store: ShardStore, *numbers: int, deadline_s: float = 30) -> list[ReadStatus]:
    """Statuses; every block that is said to be there was compared with what was written."""
    names, size = keys(*numbers), store.namespace.block_bytes
    into = [bytearray(size) for _ in names]
    statuses = await store.read(names, [memoryview(view) for view in into], deadline_s=deadline_s)
    for name, view, status in zip(names, into, statuses, strict=True):
        assert status is not FOUND or view == block(name, size)
    return statuses


async def test_blocks_survive_a_restart_and_the_store_finds_the_shard_again(
    lab: Any, eventually: Eventually
) -> None:
    shard = await lab.shard()
    store = await lab.store(shard)
    assert await write(store, *range(10)) == [WriteStatus.STORED] * 10
    assert await shard.end(signal.SIGTERM) == 0
    assert await read(store, 1) == [FAILED]
    assert (await store.match(keys(1))).blocks == 0
    assert await write(store, 11) == [WriteStatus.NOT_STORED]
    assert await shard.start()
    await eventually(lambda: all(store.shards_up().values()))
    assert (await store.match(keys(*range(11)))).blocks == 10
    assert await read(store, *range(10)) == [FOUND] * 10
    assert await write(store, 11) == [WriteStatus.STORED]


async def test_a_lost_shard_costs_its_own_blocks_only(lab: Any, eventually: Eventually) -> None:
    shards = [await lab.shard(f"storage-{number}") for number in range(2)]
    store = await lab.store(*shards)
    await write(store, *range(40))
    await shards[0].end()
    statuses = await read(store, *range(40))
    assert set(statuses) == {FOUND, FAILED}
    first_lost = statuses.index(FAILED)
    assert (await store.match(keys(*range(40)))).blocks == first_lost
    again = await write(store, *range(40))
    assert [status is WriteStatus.EXISTS for status in again] == [s is FOUND for s in statuses]
    assert (await store.stat()).blocks == statuses.count(FOUND)
    await shards[0].start()
    await eventually(lambda: all(store.shards_up().values()))
    assert await read(store, *range(40)) == [FOUND] * 40


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [4, pytest.param(50, marks=pytest.mark.slow)])
async def test_killed_while_writing_every_block_is_whole_or_absent(
    lab: Any, eventually: Eventually, rounds: int
) -> None:
    """What was acknowledged as stored survives the death of the process, at whatever moment."""
    shard, source = await lab.shard(), random.Random(rounds)
    store = await lab.store(shard, block_bytes=300_000)
    written = 0
    for round_ in range(rounds):
        numbers, some = range(round_ * 1000, round_ * 1000 + 200), source.randrange(1, 60)
        writing = asyncio.create_task(write(store, *numbers))
        await eventually(lambda: len(shard.blocks()) > written + some)  # noqa: B023
        await asyncio.sleep(0.02 * source.random())
        await shard.end()
        told = await writing
        assert await shard.start()
        await eventually(lambda: all(store.shards_up().values()))
        statuses = await read(store, *numbers)
        assert set(statuses) <= {FOUND, ABSENT}
        for status, said in zip(statuses, told, strict=True):
            assert status is FOUND or said is WriteStatus.NOT_STORED
        written = len(shard.blocks())
        assert (await store.stat()).blocks == written
    assert written > 4 * rounds


async def test_damaged_files_are_told_apart_and_never_served(lab: Any) -> None:
    shard = await lab.shard()
    store = await lab.store(shard)
    await write(store, *range(8))
    places = shard.blocks()
    files = [places[key] for key in keys(*range(8))]
    flip(files[0][0], files[0][1] + 17)
    flip(files[1][0], files[1][1] + SIZE - 1)
    contents = [path.read_bytes()[at : at + SIZE] for path, at in files]
    for number, content in ((2, contents[3]), (3, contents[2]), (4, bytes(SIZE))):
        path, at = files[number]
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)
    assert await read(store, *range(8)) == [CORRUPT] * 5 + [FOUND] * 3
    assert await read(store, *range(8)) == [ABSENT] * 5 + [FOUND] * 3
    assert (await store.match(keys(5, 6, 7, 0))).blocks == 3
    assert await write(store, *range(8)) == [WriteStatus.STORED] * 5 + [WriteStatus.EXISTS] * 3
    assert await read(store, *range(8)) == [FOUND] * 8
    assert store.counters["read_corrupt"] == 5
    assert shard.errors.count("corrupt block is put aside") == 5


async def test_files_that_are_cut_or_deleted_cost_their_blocks(
    lab: Any, eventually: Eventually
) -> None:
    shard = await lab.shard()
    store = await lab.store(shard, block_bytes=1_000_000)
    await write(store, *range(40))
    await shard.end(signal.SIGTERM)
    places = shard.blocks()
    first, *_, last = sorted({path for path, _ in places.values()})
    first.unlink()
    last.write_bytes(last.read_bytes()[: 3 * 1_003_520 + 7])
    lost = {key for key, (path, at) in places.items() if path == first}
    lost |= {key for key, (path, at) in places.items() if path == last and at >= 3 * 1_003_520}
    assert 3 < len(lost) < 40
    assert await shard.start()
    await eventually(lambda: all(store.shards_up().values()))
    expected = [ABSENT if key in lost else FOUND for key in keys(*range(40))]
    assert await read(store, *range(40)) == expected
    assert WriteStatus.NOT_STORED not in await write(store, *range(40))
    assert await read(store, *range(40)) == [FOUND] * 40


async def test_a_stopped_shard_costs_deadlines_and_serves_again_when_continued(
    lab: Any, eventually: Eventually
) -> None:
    shard = await lab.shard()
    store = await lab.store(shard)
    await write(store, *range(5))
    shard.tell(signal.SIGSTOP)
    assert await read(store, 1, deadline_s=0.5) == [FAILED]
    assert await write(store, 100, deadline_s=0.5) == [WriteStatus.NOT_STORED]
    assert (await store.match(keys(1))).blocks == 0
    shard.tell(signal.SIGCONT)
    await eventually(lambda: all(store.shards_up().values()))
    assert (await store.match(keys(*range(5)))).blocks == 5
    assert await read(store, *range(5)) == [FOUND] * 5
    assert await write(store, 100) in ([WriteStatus.STORED], [WriteStatus.EXISTS])


async def test_a_read_whose_shard_dies_fails_long_before_its_deadline(
    lab: Any, eventually: Eventually
) -> None:
    shard = await lab.shard()
    store = await lab.store(shard, block_bytes=100_000, rate=500_000)
    fast = await lab.store(shard, block_bytes=100_000, name="fast")
    await write(fast, *range(20))
    reading = asyncio.create_task(read(store, *range(20), deadline_s=3600))
    await eventually(lambda: 0 < store.outstanding_blocks < 20)
    await shard.end()
    async with asyncio.timeout(60):
        statuses = await reading
    assert FAILED in statuses
    assert store.outstanding_blocks == 0


async def test_a_cancelled_read_on_a_slow_nic_leaves_no_writer_in_the_memory(
    lab: Any, eventually: Eventually
) -> None:
    shard = await lab.shard()
    slow = await lab.store(shard, block_bytes=200_000, rate=2_000_000)
    fast = await lab.store(shard, block_bytes=200_000, name="fast")
    await write(fast, *range(20))
    memory = [bytearray(200_000) for _ in range(20)]
    reading = asyncio.create_task(
        slow.read(keys(*range(20)), [memoryview(view) for view in memory], deadline_s=60)
    )
    await eventually(lambda: any(any(view) for view in memory))
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    left = [bytes(view) for view in memory]
    assert not all(any(view) for view in left)
    assert await read(slow, 3) == [FOUND]
    assert left == memory
    assert slow.outstanding_bytes == 0


async def test_an_answer_that_waits_behind_others_blocks_on_a_slow_nic_is_waited_for(
    lab: Any,
) -> None:
    """A NIC with much to read is what the store is for: what it brings tells that the shard is there."""
    shard = await lab.shard()
    fast = await lab.store(shard, block_bytes=100_000, name="fast")
    await write(fast, *range(40))
    slow = await lab.store(shard, block_bytes=100_000, rate=1_000_000, match_deadline_s=2.0)
    reading = asyncio.create_task(read(slow, *range(40)))
    while not reading.done():
        assert (await slow.match(keys(*range(40)))).blocks == 40
    assert await reading == [FOUND] * 40
    assert all(slow.shards_up().values())


@pytest.mark.parametrize("size", [1, 4097, 20_000_001])
async def test_blocks_of_unusual_sizes(lab: Any, size: int) -> None:
    store = await lab.store(await lab.shard(), block_bytes=size)
    assert await write(store, 1, 2) == [WriteStatus.STORED] * 2
    assert await read(store, 1, 2, 3) == [FOUND, FOUND, ABSENT]


async def test_namespaces_of_several_models_live_side_by_side(lab: Any) -> None:
    shard = await lab.shard()
    one = await lab.store(shard, fingerprint="model")
    two = await lab.store(shard, fingerprint="other model", name="other")
    await write(one, 1)
    assert await read(two, 1) == [ABSENT]
    assert (await two.match(keys(1))).blocks == 0
    assert (await one.stat()).blocks == 1
    assert (await two.stat()).blocks == 0


async def test_a_disk_that_refuses_blocks_costs_only_these(lab: Any) -> None:
    shard = await lab.shard(file_bytes=17 << 20)
    large = await lab.store(shard, block_bytes=18 << 20)
    small = await lab.store(shard, name="small")
    assert await write(large, 1, 2) == [WriteStatus.NOT_STORED] * 2
    assert await write(small, 1) == [WriteStatus.STORED]
    assert await read(large, 1) == [ABSENT]
    assert await read(small, 1) == [FOUND]
    await shard.end(signal.SIGTERM)
    assert shard.errors.count("the disk refuses to write blocks") == 1


async def test_a_second_process_on_the_same_directory_is_refused(lab: Any) -> None:
    first = await lab.shard()
    second = lab.prepare()
    assert not await second.start()
    assert "in use by process" in second.errors
    store = await lab.store(first)
    assert await write(store, 1) == [WriteStatus.STORED]
