"""Copies that a shard lacks are written again when another copy is read: in bounded memory, and only there."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.wait import until

from dualpath.kvstore import repair
from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.shards import ShardStore

SIZE, COUNT = 10_000, 20
KEYS = [bytes([number] * 16) for number in range(COUNT)]
BLOCKS = {key: random.Random(key).randbytes(SIZE) for key in KEYS}


async def read(store: ShardStore, keys: list[bytes]) -> None:
    into = [bytearray(SIZE) for _ in keys]
    found = await store.read(keys, [memoryview(view) for view in into], deadline_s=60)
    assert found == [ReadStatus.FOUND] * len(keys)
    assert into == [BLOCKS[key] for key in keys]


async def counted(store: ShardStore, name: str, count: int) -> None:
    await until(lambda: store.events()[name] == count, within_s=60, what=name)


async def half_there(cluster: Any) -> tuple[ShardStore, ShardStore]:
    """A store of two copies, of which the blocks have one; and a view of the shard that lacks them."""
    for _ in range(2):
        await cluster.shard()
    store = await cluster.store(SIZE, replicas=2)
    addresses = [link.address for link in store._links.values()]
    other = await cluster.store(SIZE, name="other", shards=addresses[1:])
    await other.write(KEYS, [memoryview(BLOCKS[key]) for key in KEYS], deadline_s=60)
    return store, await cluster.store(SIZE, name="lacking", shards=addresses[:1])


async def test_repairs_wait_in_bounded_memory(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "REPAIR_BYTES", 3 * SIZE + 1)
    store, lacking = await half_there(cluster)
    assert (await store.match(KEYS)).blocks == COUNT
    await read(store, KEYS)
    await counted(store, "copies_repaired", 3)
    assert store.events()["copies_not_repaired"] == COUNT - 3
    assert (await lacking.stat()).blocks == 3
    # What was left is written when it is read again.
    for first in range(3, COUNT, 3):
        await read(store, KEYS[first : first + 3])
        await counted(store, "copies_repaired", min(COUNT, first + 3))
    assert store._repairs.pending_bytes == 0
    await read(lacking, KEYS)


async def test_what_nobody_reads_stays_as_it_is_and_a_copy_is_repaired_once(cluster: Any) -> None:
    store, lacking = await half_there(cluster)
    for _ in range(3):
        assert (await store.match(KEYS)).blocks == COUNT
        await read(store, KEYS[:5])
    await until(lambda: store._repairs.pending_bytes == 0, within_s=60)
    assert store.events()["copies_repaired"] == 5
    assert (await lacking.match(KEYS)).blocks == 5


async def test_a_repair_that_fails_is_tried_again_when_the_block_is_read_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lacking = await half_there(cluster)
    monkeypatch.setattr(repair, "REPAIR_DEADLINE_S", -1.0)
    assert (await store.match(KEYS)).blocks == COUNT
    await read(store, KEYS[:2])
    await counted(store, "copies_not_repaired", 2)
    assert store._repairs.pending_bytes == 0
    monkeypatch.undo()
    await read(store, KEYS[:2])
    await counted(store, "copies_repaired", 2)
    await read(lacking, KEYS[:2])


async def test_one_copy_repairs_nothing(cluster: Any) -> None:
    await cluster.shard()
    store = await cluster.store(SIZE)
    into = memoryview(bytearray(SIZE))
    assert await store.read(KEYS[:1], [into], deadline_s=60) == [ReadStatus.ABSENT]
    assert store.events() == {}
