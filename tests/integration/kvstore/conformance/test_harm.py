"""What every back end of the store must do when what it keeps is damaged, or cannot be had."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.support.back_ends import BackEnd
from tests.support.blocks import SIZE, keys, read, write
from tests.support.wait import until_it

from dualpath.kvstore.api import BlockStore, ReadStatus, WriteStatus
from dualpath.wire.store import Namespace

NAMESPACE = Namespace("model", SIZE)


def matches(store: BlockStore, blocks: int, count: int = 5) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await store.match(keys(*range(count)))).blocks == blocks

    return look


async def test_a_flipped_bit_is_never_served_and_the_hole_is_healed_by_the_next_write(
    back_end: BackEnd,
) -> None:
    store = await back_end.client(SIZE)
    await write(store, *range(5))
    await back_end.flip(NAMESPACE, keys(2)[0])
    assert await read(store, *range(5)) == [
        ReadStatus.FOUND,
        ReadStatus.FOUND,
        ReadStatus.CORRUPT,
        ReadStatus.FOUND,
        ReadStatus.FOUND,
    ]
    # Put aside: it is not there any more, for anybody, until it is written again.
    await until_it(matches(store, 2), what="the damaged block is out of the way")
    assert await read(await back_end.client(SIZE), 2) == [ReadStatus.ABSENT]
    assert await write(store, *range(5)) == [
        WriteStatus.EXISTS,
        WriteStatus.EXISTS,
        WriteStatus.STORED,
        WriteStatus.EXISTS,
        WriteStatus.EXISTS,
    ]
    assert await matches(store, 5)()
    assert await read(store, *range(5)) == [ReadStatus.FOUND] * 5


async def test_a_block_under_anothers_name_is_never_served(back_end: BackEnd) -> None:
    store = await back_end.client(SIZE)
    await write(store, *range(5))
    await back_end.swap(NAMESPACE, *keys(1, 3))
    assert await read(store, *range(5)) == [
        ReadStatus.FOUND,
        ReadStatus.CORRUPT,
        ReadStatus.FOUND,
        ReadStatus.CORRUPT,
        ReadStatus.FOUND,
    ]


async def test_what_cannot_be_had_has_failed_and_nothing_is_stored(back_end: BackEnd) -> None:
    store = await back_end.client(SIZE)
    await write(store, 0, 1)
    await back_end.sever()
    assert await read(store, 0, 1) == [ReadStatus.FAILED] * 2
    assert await write(store, 2) == [WriteStatus.NOT_STORED]
    assert (await store.match(keys(2, 3), lease_s=5.0)).blocks == 0


@pytest.mark.parametrize("size", [1, 1_000_003])
async def test_damage_is_found_in_blocks_of_any_size(back_end: BackEnd, size: int) -> None:
    store = await back_end.client(size)
    await write(store, 0, 1, size=size)
    await back_end.flip(Namespace("model", size), keys(1)[0])
    assert await read(store, 0, 1, size=size) == [ReadStatus.FOUND, ReadStatus.CORRUPT]
