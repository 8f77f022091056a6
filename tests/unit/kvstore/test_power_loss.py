"""After a power loss that drops and tears what was not synced, each block is there and right, or absent."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.lossy import LossyFiles

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions, DiskStore
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.putting import NewBlock
from dualpath.kvstore.volume import allocated_bytes
from dualpath.wire.store import Namespace

SPACES = [Namespace("model-a", 100), Namespace("model-b", 5000)]
ROUNDS = 10


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def content(namespace: Namespace, number: int) -> bytes:
    return random.Random(f"{namespace} {number}").randbytes(namespace.block_bytes)


def new(namespace: Namespace, number: int) -> NewBlock:
    data = content(namespace, number)
    return NewBlock(key(number), block_checksum(key(number), data), number % 8, memoryview(data))


async def is_right(store: DiskStore, namespace: Namespace, number: int) -> bool:
    """Whether a block is there; one that is there is right."""
    into = bytearray(namespace.block_bytes)
    there = store.present(namespace, [key(number)]) == b"\1"
    status, _ = await store.read(namespace, key(number), memoryview(into))
    assert status is (ReadStatus.FOUND if there else ReadStatus.ABSENT)
    assert not there or into == content(namespace, number)
    return there


async def load(store: DiskStore, source: random.Random) -> set[tuple[Namespace, int]]:
    """Write and read as many do at once, for a while; what was acknowledged as stored."""
    told: set[tuple[Namespace, int]] = set()

    async def writer() -> None:
        for _ in range(6):
            namespace = source.choice(SPACES)
            numbers = source.sample(range(60), source.randrange(1, 6))
            statuses = await store.write(namespace, [new(namespace, n) for n in numbers])
            for number, status in zip(numbers, statuses, strict=True):
                if status is WriteStatus.STORED:
                    told.add((namespace, number))
            await is_right(store, namespace, source.randrange(60))

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(writer())
    return told


async def crash(store: DiskStore) -> None:
    """End a store as its process's death does: nothing more is written or synced."""
    await store._tasks.close()
    store._threads.close()
    await store._volume.close()
    store._syncs.close()
    assert store._lock is not None
    store._lock.close()


@pytest.mark.parametrize("grain", [16, 512])
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("blocks", [30, None], ids=["full", "unbounded"])
async def test_blocks_are_right_or_absent_and_durable_ones_are_there(
    tmp_path: Path, grain: int, fsync: bool, blocks: int | None
) -> None:
    source, disk, lost = random.Random(f"{grain} {fsync} {blocks}"), LossyFiles(grain), 0
    capacity = blocks and allocated_bytes(blocks, 5000)
    options = DiskOptions(
        fsync=fsync, sync_s=3600, capacity_bytes=capacity, extent_bytes=8 * slot_bytes_of(5000)
    )
    durable: set[tuple[Namespace, int]] = set()
    for _ in range(ROUNDS):
        store = DiskStore(tmp_path, options, files=disk)
        await store.open()
        assert capacity is None or store.allocated_bytes <= capacity
        for namespace in SPACES:
            for number in range(60):
                there = await is_right(store, namespace, number)
                assert there or blocks or (namespace, number) not in durable
        told = await load(store, source)
        if fsync:
            durable |= told
        elif source.random() < 0.5:
            await store._syncs.through()
            durable |= told
            await load(store, source)
        await crash(store)
        lost += disk.power_loss(source)
    assert lost, "the disk has forgotten something"
    assert blocks or durable


async def test_durable_blocks_of_a_full_store_are_there_unless_they_gave_way(
    tmp_path: Path,
) -> None:
    """Evicted slots are used anew only when a power loss cannot bring their old entries back."""
    source, namespace = random.Random(3), SPACES[1]
    disk = LossyFiles(64)
    options = DiskOptions(fsync=True, sync_s=3600, capacity_bytes=allocated_bytes(8, 5000))
    for round_ in range(20):
        store = DiskStore(tmp_path, options, files=disk)
        await store.open()
        assert "torn_at_open" not in store.counters
        numbers = range(round_ * 3, round_ * 3 + 3)
        statuses = await store.write(namespace, [new(namespace, n) for n in numbers])
        assert statuses == [WriteStatus.STORED] * 3
        await crash(store)
        disk.power_loss(source)
        store = DiskStore(tmp_path, options, files=disk)
        await store.open()
        for number in numbers:
            assert await is_right(store, namespace, number)
        assert store.stat().blocks <= 8
        await store.close()
