"""What every back end of the store must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.back_ends import BackEnd
from tests.support.blocks import SIZE, block, keys, read, write

from dualpath.kvstore.api import BlockStore, ReadStatus, WriteStatus

MakeStore = Callable[[int], Awaitable[BlockStore]]


async def test_nothing_is_there_at_first(store: BlockStore) -> None:
    assert (await store.match(keys(1, 2))).blocks == 0
    assert await read(store, 1) == [ReadStatus.ABSENT]
    assert (await store.stat()).blocks == 0


async def test_no_keys_are_no_work(store: BlockStore) -> None:
    match = await store.match([], lease_s=1.0)
    assert match.blocks == 0
    await store.release(match)
    assert await store.read([], [], deadline_s=1.0) == []
    assert await store.write([], [], deadline_s=1.0) == []


async def test_what_is_written_is_matched_and_read(store: BlockStore, back_end: BackEnd) -> None:
    assert await write(store, *range(20)) == [WriteStatus.STORED] * 20
    assert (await store.match(keys(*range(20)))).blocks == 20
    assert await read(store, *range(20)) == [ReadStatus.FOUND] * 20
    stat = await store.stat()
    copies = back_end.copies
    assert (stat.blocks, stat.nbytes) == (copies * 20, copies * 20 * SIZE)


async def test_writing_again_is_a_success(store: BlockStore) -> None:
    await write(store, 1, 2)
    assert await write(store, 1, 2, 3) == [
        WriteStatus.EXISTS,
        WriteStatus.EXISTS,
        WriteStatus.STORED,
    ]


async def test_a_match_ends_at_the_first_hole(store: BlockStore) -> None:
    await write(store, 0, 1, 2, 4, 5)
    assert (await store.match(keys(*range(6)))).blocks == 3
    assert (await store.match(keys(3, 4))).blocks == 0
    assert (await store.match(keys(4, 5))).blocks == 2
    await write(store, 3)
    assert (await store.match(keys(*range(7)))).blocks == 6


async def test_a_read_tells_found_from_absent_block_by_block(store: BlockStore) -> None:
    await write(store, 1, 3)
    assert await read(store, 0, 1, 2, 3) == [
        ReadStatus.ABSENT,
        ReadStatus.FOUND,
        ReadStatus.ABSENT,
        ReadStatus.FOUND,
    ]


async def test_a_key_may_come_twice_in_a_batch(store: BlockStore, back_end: BackEnd) -> None:
    written = await write(store, 1, 2, 1, 1)
    assert all(status is not WriteStatus.NOT_STORED for status in written)
    assert await read(store, 1, 1, 2, 1) == [ReadStatus.FOUND] * 4
    assert (await store.match(keys(1, 1, 2))).blocks == 3
    assert (await store.stat()).blocks == 2 * back_end.copies


async def test_writers_of_the_same_blocks_all_succeed(store: BlockStore) -> None:
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(write(store, *range(8))) for _ in range(4)]
    for writer in writers:
        assert WriteStatus.NOT_STORED not in writer.result()
    assert await read(store, *range(8)) == [ReadStatus.FOUND] * 8


async def test_a_reader_of_what_is_being_written_sees_it_whole_or_not_at_all(
    store: BlockStore,
) -> None:
    async def reader() -> set[ReadStatus]:
        seen: set[ReadStatus] = set()
        while ReadStatus.ABSENT in (statuses := await read(store, *range(30))):
            seen.update(statuses)
        return seen | set(statuses)

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(reader()) for _ in range(3)]
        for number in range(30):
            await write(store, number)
    for one in readers:
        assert one.result() <= {ReadStatus.ABSENT, ReadStatus.FOUND}


@pytest.mark.parametrize("size", [1, 7, 4096, 4097, 65_537, 1_000_003])
async def test_blocks_of_any_size(make_store: MakeStore, size: int) -> None:
    store = await make_store(size)
    assert await write(store, *range(5), size=size) == [WriteStatus.STORED] * 5
    assert await read(store, *range(5), size=size) == [ReadStatus.FOUND] * 5


async def test_views_of_a_wrong_size_are_an_error_of_the_caller(store: BlockStore) -> None:
    with pytest.raises(ValueError, match="one view of"):
        await store.read(keys(1), [memoryview(bytearray(SIZE + 1))], deadline_s=1.0)
    with pytest.raises(ValueError, match="one view of"):
        await store.write(keys(1, 2), [block(keys(1)[0])], deadline_s=1.0)


async def test_only_the_views_are_written_to(store: BlockStore) -> None:
    await write(store, 1, 2)
    memory = bytearray(b"\xee" * (4 * SIZE))
    views = [memoryview(memory)[SIZE : 2 * SIZE], memoryview(memory)[3 * SIZE :]]
    statuses = await store.read(keys(1, 2), views, deadline_s=60.0)
    assert statuses == [ReadStatus.FOUND] * 2
    assert memory[:SIZE] == memory[2 * SIZE : 3 * SIZE] == b"\xee" * SIZE


async def test_a_cancelled_read_leaves_no_writer_in_the_memory(store: BlockStore) -> None:
    await write(store, *range(64))
    names = keys(*range(64))
    memory = [bytearray(SIZE) for _ in names]
    for turns in range(0, 40, 2):
        reading = asyncio.create_task(
            store.read(names, [memoryview(view) for view in memory], deadline_s=60.0)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        for view in memory:
            view[:] = b"\xee" * SIZE
        # By the time these are answered, what was on its way has arrived somewhere.
        assert await read(store, *range(8)) == [ReadStatus.FOUND] * 8
        assert all(view == b"\xee" * SIZE for view in memory)


async def test_cancelled_writes_leave_whole_blocks_or_none(store: BlockStore) -> None:
    for turns in range(0, 40, 4):
        numbers = range(turns * 100, turns * 100 + 8)
        writing = asyncio.create_task(write(store, *numbers))
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        assert set(await read(store, *numbers)) <= {ReadStatus.ABSENT, ReadStatus.FOUND}


async def test_a_deadline_that_has_passed_gives_failed_never_found(store: BlockStore) -> None:
    await write(store, 1)
    names, view = keys(1), memoryview(bytearray(SIZE))
    assert await store.read(names, [view], deadline_s=-1.0) == [ReadStatus.FAILED]
    late = await store.write(keys(2), [block(keys(2)[0])], deadline_s=-1.0)
    assert late == [WriteStatus.NOT_STORED]


async def test_leases_are_taken_and_released(store: BlockStore) -> None:
    await write(store, 1, 2)
    match = await store.match(keys(1, 2, 3), lease_s=30.0)
    assert match.blocks == 2
    assert match.lease is not None
    assert await read(store, 1, 2) == [ReadStatus.FOUND] * 2
    await store.release(match)
    await store.release(match)


async def test_a_late_deadline_leaves_the_memory_alone(store: BlockStore) -> None:
    await write(store, *range(16))
    memory = [bytearray(b"\xee" * SIZE) for _ in range(16)]
    views = [memoryview(view) for view in memory]
    statuses = await store.read(keys(*range(16)), views, deadline_s=1e-4)
    assert set(statuses) <= {ReadStatus.FAILED, ReadStatus.FOUND}
    after = [bytes(view) for view in memory]
    assert await read(store, *range(16)) == [ReadStatus.FOUND] * 16
    assert [bytes(view) for view in memory] == after


async def test_clients_see_what_others_wrote(back_end: BackEnd) -> None:
    one, other = await back_end.client(SIZE), await back_end.client(SIZE)
    assert await write(one, 1, 2) == [WriteStatus.STORED] * 2
    assert (await other.match(keys(1, 2, 3))).blocks == 2
    assert await read(other, 1, 2) == [ReadStatus.FOUND] * 2
    assert await write(other, 2, 3) == [WriteStatus.EXISTS, WriteStatus.STORED]
    assert (await one.match(keys(1, 2, 3))).blocks == 3


async def test_clients_that_write_the_same_keys_at_once_all_succeed(back_end: BackEnd) -> None:
    clients = [await back_end.client(SIZE) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        writers = [group.create_task(write(client, *range(12))) for client in clients]
    for writer in writers:
        assert WriteStatus.NOT_STORED not in writer.result()
    for client in clients:
        assert await read(client, *range(12)) == [ReadStatus.FOUND] * 12
    assert (await clients[0].stat()).blocks == 12 * back_end.copies


async def test_models_and_block_sizes_keep_apart(back_end: BackEnd) -> None:
    store = await back_end.client(SIZE)
    await write(store, 1)
    for other in (
        await back_end.client(SIZE, fingerprint="another"),
        await back_end.client(SIZE + 1),
    ):
        assert (await other.match(keys(1))).blocks == 0
        assert (await other.stat()).blocks == 0
