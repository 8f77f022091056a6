"""Room in a directory: what is removed, what stays, and that it is never more than was allowed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.blocks import SIZE, keys, read, write
from tests.support.wait import until, until_it

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.directory.census import Holdings
from dualpath.kvstore.directory.files import BlockFiles
from dualpath.kvstore.directory.layout import space_of, taken_bytes
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.pins import doom, pin, pinned, unpin
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.lanes.api import Lane
from dualpath.lanes.nic import PacedNic
from dualpath.wire.store import Namespace

NAMESPACE = Namespace("model", SIZE)


class Mount:
    """A directory and clients of it; all are closed at the test's end."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self.root = root
        self.space = space_of(root, NAMESPACE)
        self.room = taken_bytes(self.space.file_bytes)
        self._stack = stack

    async def client(self, nic: PacedNic | None = None, **options: object) -> DirectoryStore:
        store = DirectoryStore(
            self.root,
            fingerprint="model",
            block_bytes=SIZE,
            nic=nic or PacedNic("nic"),
            options=DirectoryOptions(threads=2, **options),  # type: ignore[arg-type]
        )
        await store.start()
        self._stack.push_async_callback(store.close)
        return store

    def age(self, seconds: float, *numbers: int) -> None:
        """Let it look as if blocks were used so long ago, as one chain."""
        now = time.time_ns() - int(seconds * 1e9)
        BlockFiles(self.space, NAMESPACE).touch(keys(*numbers), now)

    def taken(self) -> int:
        return sum(
            taken_bytes(path.stat().st_size)
            for path in self.space.path.glob("blocks/*/*")
            if path.exists()
        )

    def there(self) -> set[int]:
        return {int(path.name, 16) for path in self.space.path.glob("blocks/*/*")}


@pytest.fixture
async def mount(tmp_path: Path) -> AsyncIterator[Mount]:
    async with AsyncExitStack() as stack:
        yield Mount(tmp_path / "blocks", stack)


async def test_what_was_unused_longest_goes_first_and_of_a_chain_the_end(mount: Mount) -> None:
    store = await mount.client()
    await write(store, *range(8))
    mount.age(300, 4, 5, 6, 7)
    mount.age(200, 0, 1, 2, 3)
    removed = Holdings(mount.root).make_room(5 * mount.room)
    assert (removed, mount.there()) == (3, {0, 1, 2, 3, 4})
    Holdings(mount.root).make_room(2 * mount.room)
    assert mount.there() == {0, 1}


async def test_a_match_makes_a_chain_young_again(mount: Mount) -> None:
    store = await mount.client()
    await write(store, *range(4))
    mount.age(300, 0, 1, 2, 3)
    assert (await store.match(keys(0, 1))).blocks == 2
    Holdings(mount.root).make_room(2 * mount.room)
    assert mount.there() == {0, 1}


async def test_what_is_under_a_lease_stays_until_it_is_released_or_expires(mount: Mount) -> None:
    store = await mount.client()
    await write(store, *range(4))
    match = await store.match(keys(0, 1), lease_s=600.0)
    mount.age(300, 0, 1)
    mount.age(200, 2, 3)
    Holdings(mount.root).make_room(0)
    assert mount.there() == {0, 1}
    await store.release(match)
    Holdings(mount.root).make_room(0)
    assert mount.there() == set()
    mount.space.make(NAMESPACE)
    expired = pin(mount.space, keys(9), -1.0)
    assert pinned(mount.space) == set()
    assert not expired.exists()


async def test_what_is_doomed_is_not_matched_and_a_pin_before_it_holds(mount: Mount) -> None:
    store = await mount.client()
    await write(store, *range(3))
    doom(mount.space, keys(1))
    assert (await store.match(keys(0, 1, 2), lease_s=5.0)).blocks == 1
    held = pin(mount.space, keys(1), 60.0)
    # A keeper that has died while it removed blocks leaves what it doomed; the next one pardons it.
    Holdings(mount.root).make_room(2 * mount.room)
    assert 1 in mount.there()
    assert not mount.space.doomed.exists()
    unpin(held)


async def test_what_nobody_uses_expires(mount: Mount) -> None:
    store = await mount.client(ttl_s=100.0)
    await write(store, *range(4))
    mount.age(300, 2, 3)
    await until(lambda: mount.there() == {0, 1}, within_s=60)


@pytest.mark.slow
async def test_two_clients_never_take_more_than_the_capacity(mount: Mount) -> None:
    capacity = 20 * mount.room
    clients = [await mount.client(capacity_bytes=capacity) for _ in range(2)]
    most = 0

    async def fill(client: DirectoryStore, first: int) -> int:
        stored = 0
        for number in range(first, first + 40):
            for _ in range(100):
                if await write(client, number) != [WriteStatus.NOT_STORED]:
                    stored += 1
                    break
                await asyncio.sleep(0.02)
        return stored

    async with asyncio.TaskGroup() as group:
        fillers = [group.create_task(fill(c, 1000 * i)) for i, c in enumerate(clients)]
        while not all(filler.done() for filler in fillers):
            most = max(most, await asyncio.to_thread(mount.taken))
            await asyncio.sleep(0.005)
    assert 10 * mount.room < most <= capacity
    # More than fits at once was stored: old blocks gave way.
    assert sum(filler.result() for filler in fillers) > 30
    newest = max(mount.there())
    assert await read(clients[0], newest) == [ReadStatus.FOUND]


async def test_another_client_keeps_the_directory_when_its_keeper_leaves(mount: Mount) -> None:
    capacity = 20 * mount.room
    first = await mount.client(capacity_bytes=capacity)
    second = await mount.client(capacity_bytes=capacity)
    await first.close()

    async def stores() -> bool:
        return await write(second, *range(4)) != [WriteStatus.NOT_STORED] * 4

    await until_it(stores, within_s=60)


async def test_reads_and_writes_are_charged_to_the_snic(mount: Mount) -> None:
    nic = PacedNic("snic", 1e9, quantum_bytes=4096)
    store = await mount.client(nic)
    await write(store, *range(4))
    await write(store, *range(4))
    assert nic.moved()[Lane.LOW, "tx"] == 4 * SIZE
    await read(store, *range(6))
    assert nic.moved()[Lane.LOW, "rx"] == 4 * SIZE
    nic.close()


async def test_a_truncated_block_is_absent_for_a_match_and_written_anew(mount: Mount) -> None:
    store = await mount.client()
    await write(store, 0, 1)
    os.truncate(mount.space.block(keys(1)[0]), SIZE // 2)
    assert (await store.match(keys(0, 1))).blocks == 1
    assert await write(store, 0, 1) == [WriteStatus.EXISTS, WriteStatus.STORED]
    assert await read(store, 0, 1) == [ReadStatus.FOUND] * 2
    assert len(list(mount.space.aside.iterdir())) == 1


async def test_a_dropped_namespace_is_made_again_by_the_next_write(mount: Mount) -> None:
    store = await mount.client()
    await write(store, 0)
    mount.space.path.rename(mount.root / "elsewhere")
    assert await read(store, 0) == [ReadStatus.ABSENT]
    assert (await store.match(keys(0), lease_s=5.0)).blocks == 0
    assert await write(store, 0) == [WriteStatus.STORED]
    assert await read(store, 0) == [ReadStatus.FOUND]


async def test_without_hard_links_blocks_are_renamed(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(1, "no links on this file system")

    monkeypatch.setattr("dualpath.kvstore.directory.files.os.link", refuse)
    store = await mount.client()
    assert await write(store, 0, 1) == [WriteStatus.STORED] * 2
    assert await write(store, 0, 1) == [WriteStatus.EXISTS] * 2
    assert await read(store, 0, 1) == [ReadStatus.FOUND] * 2
    assert list(mount.space.incoming.iterdir()) == []
