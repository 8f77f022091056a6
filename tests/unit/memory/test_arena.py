from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.blocks import KVGeometry, KVPart
from dualpath.memory.arena import Arena, BufferRegion, SlotRegion

GEOMETRY = KVGeometry(4, ((KVPart("k", 3), KVPart("v", 5)), (KVPart("latent", 7),)))
BLOCK = GEOMETRY.full_block_bytes


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena("test", BLOCK, 8, reserved=2)
    yield made
    made.close()


async def test_slots_are_granted_in_the_order_of_asking(arena: Arena) -> None:
    first = await arena.acquire(5)
    big, small = asyncio.create_task(arena.acquire(4)), asyncio.create_task(arena.acquire(1))
    await asyncio.sleep(0)
    assert arena.pool_use().waiting == 2
    arena.release(first)
    assert len(await big) == 4
    assert len(await small) == 1


async def test_asking_for_nothing_never_waits(arena: Arena) -> None:
    await arena.acquire(6)
    assert await arena.acquire(0) == []


async def test_more_than_the_arena_can_ever_give_is_an_error(arena: Arena) -> None:
    with pytest.raises(ValueError, match="7 slots were asked for"):
        await arena.acquire(arena.prompt_slots + 1)


async def test_cancelling_a_waiting_head_lets_the_next_in(arena: Arena) -> None:
    await arena.acquire(4)
    head, behind = asyncio.create_task(arena.acquire(3)), asyncio.create_task(arena.acquire(2))
    await asyncio.sleep(0)
    head.cancel()
    assert len(await behind) == 2
    assert arena.pool_use().used == 6


async def test_a_grant_that_races_a_cancel_is_given_back(arena: Arena) -> None:
    held = await arena.acquire(6)
    waiting = asyncio.create_task(arena.acquire(6))
    await asyncio.sleep(0)
    arena.release(held)  # Granted now, but the task has not been woken yet …
    waiting.cancel()  # … and never learns of it.
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert arena.pool_use().used == 0


async def test_a_cancel_that_races_a_grant_takes_nothing(arena: Arena) -> None:
    held = await arena.acquire(6)
    waiting, behind = asyncio.create_task(arena.acquire(6)), asyncio.create_task(arena.acquire(6))
    await asyncio.sleep(0)
    waiting.cancel()
    arena.release(held)
    assert len(await behind) == 6
    assert waiting.cancelled()
    assert arena.pool_use().used == 6


async def test_a_storm_of_arrivals_and_cancels_leaves_nothing_taken(arena: Arena) -> None:
    chance = random.Random(7)

    async def client() -> None:
        slots = await arena.acquire(chance.randint(0, 6))
        await asyncio.sleep(0)
        arena.release(slots)

    clients = [asyncio.create_task(client()) for _ in range(300)]
    pending = list(clients)
    while not all(task.done() for task in clients):
        pending = [task for task in pending if not task.done()]
        if pending and chance.random() < 0.5:
            chance.choice(pending).cancel()
        await asyncio.sleep(0)
    assert any(task.cancelled() for task in clients)
    assert all(task.cancelled() or task.exception() is None for task in clients)
    use = arena.pool_use()
    assert (use.used, use.waiting, use.total) == (0, 0, 8)


def test_the_reserve_has_slots_of_its_own(arena: Arena) -> None:
    slots = [arena.take_reserved(), arena.take_reserved()]
    assert arena.take_reserved() is None
    assert (arena.reserved_use().used, arena.reserved_use().total) == (2, 2)
    arena.release(slot for slot in slots if slot is not None)
    assert arena.pool_use().used == 0


def test_slots_are_apart_writable_and_of_the_blocks_size(arena: Arena) -> None:
    for slot in range(arena.total):
        view = arena.view(slot)
        assert (view.nbytes, view.format, view.readonly) == (BLOCK, "B", False)
        view[:] = bytes([slot]) * BLOCK
    assert [bytes(arena.view(s)) for s in range(8)] == [bytes([s]) * BLOCK for s in range(8)]
    with pytest.raises(ValueError, match="no slot 8"):
        arena.view(8)


async def test_closing_ends_those_who_wait_and_spares_views_in_use() -> None:
    arena = Arena("test", BLOCK, 1)
    await arena.acquire(1)
    view = arena.view(0)
    waiting = asyncio.create_task(arena.acquire(1))
    await asyncio.sleep(0)
    arena.close()
    arena.close()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    view[0] = 1


# ── regions ────────────────────────────────────────────────────────────────────────────────────────
def flat_reference(arena: Arena, slots: list[int]) -> bytes:
    """The layer-major view, by definition: layer by layer, block by block."""
    out = bytearray()
    for layer, row in enumerate(GEOMETRY.row_bytes):
        base = GEOMETRY.layer_offset(layer)
        for slot in slots:
            out += arena.view(slot)[base : base + GEOMETRY.block_tokens * row]
    return bytes(out)


@given(data=st.data())
def test_a_slot_region_is_the_layer_major_view_of_its_slots(data: st.DataObject) -> None:
    arena = Arena("test", BLOCK, 8)
    chance = random.Random(data.draw(st.integers(0, 1000)))
    for slot in range(8):
        arena.view(slot)[:] = chance.randbytes(BLOCK)
    slots = data.draw(st.permutations(range(8)))[: data.draw(st.integers(1, 8))]
    region = SlotRegion(arena, slots, GEOMETRY)
    flat = flat_reference(arena, slots)
    assert region.nbytes == len(flat) == GEOMETRY.flat_bytes(len(slots) * 4)
    start = data.draw(st.integers(0, region.nbytes))
    stop = data.draw(st.integers(start, region.nbytes))
    pieces = region.resolve(start, stop - start)
    assert b"".join(pieces) == flat[start:stop]
    assert all(piece.nbytes for piece in pieces)
    layer = data.draw(st.integers(0, 1))
    first = data.draw(st.integers(0, region.capacity_tokens))
    last = data.draw(st.integers(first, region.capacity_tokens))
    rows = region.rows(layer, first, last)
    begin = GEOMETRY.flat_offset(region.capacity_tokens, layer, first)
    end = begin + (last - first) * GEOMETRY.row_bytes[layer]
    assert b"".join(rows) == flat[begin:end]
    assert len(rows) == len({token // GEOMETRY.block_tokens for token in range(first, last)})
    arena.close()


def test_writing_through_a_region_reaches_the_slots(arena: Arena) -> None:
    landed: list[int] = []
    region = SlotRegion(arena, [3, 1], GEOMETRY, landed.append)
    for piece in region.resolve(0, region.nbytes):
        piece[:] = b"\7" * piece.nbytes
    region.on_write(42)
    assert bytes(arena.view(3)) == bytes(arena.view(1)) == b"\7" * BLOCK
    assert bytes(arena.view(0)) == bytes(BLOCK)
    assert landed == [42]


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (0, 4 * BLOCK), (2 * BLOCK, 1), (0, -1)])
def test_a_range_outside_of_the_region_is_refused(arena: Arena, offset: int, nbytes: int) -> None:
    region = SlotRegion(arena, [0, 1], GEOMETRY)
    with pytest.raises(ValueError, match="outside of this region"):
        region.resolve(offset, nbytes)
    with pytest.raises(ValueError, match="outside of this region of 8 tokens"):
        region.rows(0, 0, 9)


def test_blocks_have_to_fit_into_slots() -> None:
    arena = Arena("test", BLOCK - 1, 1)
    with pytest.raises(ValueError, match="cannot hold Full Blocks"):
        SlotRegion(arena, [0], GEOMETRY)
    arena.close()


def test_a_buffer_region_is_its_buffer() -> None:
    memory = bytearray(10)
    landed: list[int] = []
    region = BufferRegion(memoryview(memory), landed.append)
    [piece] = region.resolve(2, 3)
    piece[:] = b"abc"
    region.on_write(1)
    assert (region.nbytes, bytes(memory), landed) == (10, b"\0\0abc\0\0\0\0\0", [1])
