from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.memory.ranges import ALIGNMENT, RangeAllocator
from dualpath.storage.staging import NoRoom, Staging

PAGE = ALIGNMENT


@given(st.lists(st.one_of(st.integers(1, 6 * PAGE), st.just(-1)), max_size=60))
def test_ranges_never_overlap_nor_exceed_the_budget_and_all_come_back(
    steps: list[int],
) -> None:
    ranges = RangeAllocator(16 * PAGE, 5 * PAGE)
    taken: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step < 0 and taken:
            offset = sorted(taken)[number % len(taken)]
            del taken[offset]
            ranges.free(offset)
        elif step > 0:
            offset_or_none = ranges.allocate(step)
            if offset_or_none is not None:
                assert offset_or_none % PAGE == 0
                taken[offset_or_none] = step
        spans = sorted((offset, offset + size) for offset, size in taken.items())
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        assert not spans or spans[-1][1] <= ranges.size
        assert ranges.used <= ranges.budget or len(taken) == 1
    for offset in taken:
        ranges.free(offset)
    assert ranges.used == 0
    assert ranges.allocate(16 * PAGE) == 0


def test_what_never_fits_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="never fit"):
        RangeAllocator(PAGE, PAGE).allocate(PAGE + 1)
    with pytest.raises(KeyError):
        RangeAllocator(PAGE, PAGE).free(0)


async def test_buffers_are_of_the_size_asked_for_and_given_back() -> None:
    staging = Staging("staging", 4 * PAGE, 8 * PAGE)
    async with staging.hold(5) as buffer:
        buffer[:] = b"hello"
        assert staging.pool_use().used == PAGE
    async with staging.hold(8 * PAGE) as buffer:
        assert len(buffer) == 8 * PAGE
    assert staging.pool_use().used == 0


async def test_who_comes_first_is_served_first() -> None:
    staging = Staging("staging", 4 * PAGE, 4 * PAGE)
    order: list[str] = []

    async def use(name: str, pages: int, leave: asyncio.Event) -> None:
        async with staging.hold(pages * PAGE):
            order.append(name)
            await leave.wait()

    first, others = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(use("one", 3, first))
        group.create_task(use("large", 4, others))
        group.create_task(use("small", 1, others))
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == ["one"]
        assert staging.pool_use().waiting == 2
        first.set()
        others.set()
    assert order == ["one", "large", "small"]


async def test_who_does_not_want_to_wait_any_longer_lets_the_next_pass() -> None:
    staging = Staging("staging", 2 * PAGE, 4 * PAGE)
    entered = asyncio.Event()

    async def small() -> None:
        async with staging.hold(PAGE):
            entered.set()

    async with staging.hold(PAGE), asyncio.TaskGroup() as group:
        large = group.create_task(staging.hold(2 * PAGE).__aenter__())
        await asyncio.sleep(0)
        group.create_task(small())
        await asyncio.sleep(0)
        assert not entered.is_set()
        large.cancel()
        await entered.wait()
    assert staging.pool_use().used == 0


async def test_a_wait_ends_with_no_room() -> None:
    staging = Staging("staging", PAGE, PAGE)
    async with staging.hold(1):
        with pytest.raises(NoRoom, match="came free"):
            async with staging.hold(1, wait_s=0.01):
                pass
    async with staging.hold(1, wait_s=0.01):
        pass


async def test_a_wait_cancelled_in_the_moment_of_its_grant_leaks_nothing() -> None:
    staging = Staging("staging", PAGE, PAGE)

    async def use() -> None:
        async with staging.hold(1):
            pass

    async with staging.hold(1):
        waiting = asyncio.create_task(use())
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert staging.pool_use().used == 0
