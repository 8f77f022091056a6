"""Blocks on two shards of three: one may be gone, or hang, and nobody waits long or reads a wrong one."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.stored import flip

from dualpath.kvstore import shards as shards_module
from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.placement import Placement
from dualpath.kvstore.shards import ShardStore

FOUND, ABSENT, CORRUPT, FAILED = ReadStatus
Eventually = Callable[[Callable[[], bool | Awaitable[bool]]], Awaitable[None]]
COUNT = 40


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in numbers]


def block(key: bytes, size: int) -> memoryview:
    return memoryview(random.Random(key).randbytes(size))


async def write(store: ShardStore, *numbers: int) -> list[WriteStatus]:
    names, size = keys(*numbers), store.namespace.block_bytes
    return await store.write(names, [block(name, size) for name in names], deadline_s=60)


async def read(store: ShardStore, *numbers: int) -> list[ReadStatus]:
    """Statuses; every block that is said to be there was compared with what was written."""
    names, size = keys(*numbers), store.namespace.block_bytes
    into = [bytearray(size) for _ in names]
    statuses = await store.read(names, [memoryview(view) for view in into], deadline_s=60)
    for name, view, status in zip(names, into, statuses, strict=True):
        assert status is not FOUND or view == block(name, size)
    return statuses


async def test_every_block_is_on_two_shards_and_one_may_be_gone(
    lab: Any, eventually: Eventually
) -> None:
    shards = [await lab.shard(f"storage-{number}") for number in range(3)]
    store = await lab.store(*shards, replicas=2)
    assert await write(store, *range(COUNT)) == [WriteStatus.STORED] * COUNT
    holders = Placement([shard.shard_id for shard in shards]).holders(keys(*range(COUNT)), 2)
    for shard in shards:
        own = {
            key
            for key, names in zip(keys(*range(COUNT)), holders, strict=True)
            if shard.shard_id in names
        }
        assert set(shard.blocks()) == own
    await shards[0].end()
    assert await read(store, *range(COUNT)) == [FOUND] * COUNT
    assert (await store.match(keys(*range(COUNT)))).blocks == COUNT
    # What is written meanwhile has one copy where the lost shard should have the other.
    assert await write(store, *range(100, 110)) == [WriteStatus.STORED] * 10
    assert await read(store, *range(100, 110)) == [FOUND] * 10
    await shards[0].start()
    await eventually(lambda: all(store.shards_up().values()))
    assert await read(store, *range(COUNT)) == [FOUND] * COUNT
    # Written again, it heals.
    before = len(shards[0].blocks())
    assert set(await write(store, *range(100, 110))) <= {WriteStatus.STORED, WriteStatus.EXISTS}
    assert len(shards[0].blocks()) > before


async def test_a_damaged_copy_is_read_from_the_other_shard_put_aside_and_written_again(
    lab: Any, eventually: Eventually
) -> None:
    shards = [await lab.shard(f"storage-{number}") for number in range(2)]
    store = await lab.store(*shards, replicas=2)
    await write(store, *range(10))
    first = Placement([shard.shard_id for shard in shards]).holder(keys(3)[0])
    (shard,) = (shard for shard in shards if shard.shard_id == first)
    flip(*shard.blocks()[keys(3)[0]])
    assert await read(store, *range(10)) == [FOUND] * 10
    assert store.counters["read_elsewhere"] == 1
    await eventually(lambda: store.counters["copies_repaired"] == 1)
    assert "corrupt block is put aside" in shard.errors
    assert await write(store, 3) == [WriteStatus.EXISTS]
    # The copy that is there now is right.
    (other,) = (other for other in shards if other is not shard)
    await other.end()
    assert await read(store, *range(10)) == [FOUND] * 10


@pytest.mark.slow
async def test_a_shard_that_returns_gets_what_is_asked_for(
    lab: Any, eventually: Eventually
) -> None:
    """With an empty disk, and by reads alone: of a match it is known what it lacks, though another is asked."""
    shards = [await lab.shard(f"storage-{number}") for number in range(3)]
    store = await lab.store(*shards, replicas=2)
    await write(store, *range(COUNT))
    holders = Placement([shard.shard_id for shard in shards]).holders(keys(*range(COUNT)), 2)
    own = {
        key for key, names in zip(keys(*range(COUNT)), holders, strict=True) if "storage-0" in names
    }
    await shards[0].end()
    shutil.rmtree(shards[0].root)
    assert await read(store, *range(COUNT)) == [FOUND] * COUNT
    await shards[0].start()
    await eventually(lambda: store.shards_up()["storage-0"])
    match = await store.match(keys(*range(COUNT)))
    assert match.blocks == COUNT
    before = store.counters["read_elsewhere"]
    assert await read(store, *range(COUNT)) == [FOUND] * COUNT
    assert store.counters["read_elsewhere"] == before, "nobody was asked for what he lacks"
    await eventually(lambda: store.counters["copies_repaired"] == len(own))
    assert set(shards[0].blocks()) == own
    for shard in shards[1:]:
        await shard.end()
    numbers = [int.from_bytes(key, "big") for key in sorted(own)]
    assert await read(store, *numbers) == [FOUND] * len(own)


@pytest.mark.slow
async def test_one_killed_and_one_stopped_of_three_fail_no_call_and_serve_again(
    lab: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [await lab.shard(f"storage-{number}") for number in range(3)]
    # So long that no shard of a busy machine is given up by mistake.
    monkeypatch.setattr(shards_module, "STALL_S", 5.0)
    store = await lab.store(*shards, replicas=2, transfer_deadline_s=60.0)
    await write(store, *range(COUNT))
    holders = Placement([shard.shard_id for shard in shards]).holders(keys(*range(COUNT)), 2)
    over = asyncio.Event()

    async def load(seed: int) -> int:
        source, found = random.Random(seed), 0
        while not over.is_set():
            numbers = source.sample(range(COUNT), 10)
            statuses = await read(store, *numbers)
            for number, status in zip(numbers, statuses, strict=True):
                # A block is lost only while both of its shards are.
                assert status is FOUND or set(holders[number]) == {"storage-0", "storage-1"}
            found += statuses.count(FOUND)
            new = source.randrange(1000, 10**6)
            await write(store, new)
            await read(store, new)
        return found

    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(load(seed)) for seed in range(3)]
        await shards[0].end()
        await eventually(lambda: not store.shards_up()["storage-0"])
        shards[1].tell(signal.SIGSTOP)
        await eventually(lambda: not store.shards_up()["storage-1"])
        alone = [n for n in range(COUNT) if "storage-2" in holders[n]]
        assert await read(store, *alone) == [FOUND] * len(alone)
        shards[1].tell(signal.SIGCONT)
        await shards[0].start()
        await eventually(lambda: all(store.shards_up().values()))
        over.set()
    assert all(task.result() for task in loads)
    assert await read(store, *range(COUNT)) == [FOUND] * COUNT
    asked = await asyncio.gather(*(read(store, *range(COUNT)) for _ in range(4)))
    assert all(statuses == [FOUND] * COUNT for statuses in asked)
