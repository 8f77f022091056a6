from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.region import BlocksRegion
from dualpath.wire.store import pack_run, unpack_run


def ignore(_: object) -> None:
    """What is told."""


@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_a_region_is_its_blocks_end_to_end(blocks: int, size: int, data: st.DataObject) -> None:
    memory = [bytearray(size) for _ in range(blocks)]
    region = BlocksRegion([memoryview(block) for block in memory], ignore, ignore)
    assert region.nbytes == blocks * size
    offset = data.draw(st.integers(0, region.nbytes))
    nbytes = data.draw(st.integers(0, region.nbytes - offset))
    for piece in region.resolve(offset, nbytes):
        piece[:] = b"x" * len(piece)
    assert b"".join(memory) == (b"x" * nbytes).rjust(offset + nbytes, b"\0").ljust(
        region.nbytes, b"\0"
    )


def test_each_block_is_counted_once_when_it_lands() -> None:
    landed: list[int] = []
    whole: list[int] = []
    views = [memoryview(bytearray(4))] * 6
    region = BlocksRegion(views, landed.extend, whole.append)
    region.on_bytes(0, 4)
    for imm in (2, 2, 0, 7, 2**64 - 1, pack_run(1, 3), pack_run(6, 1)):
        region.on_write(imm)
    assert (landed, region.awaited) == ([2, 0, 1, 3], 2)
    region.on_write(pack_run(3, 2**32))
    assert (landed[4:], region.awaited) == ([4, 5], 0)
    assert whole == [0, 2, 1, 3, 4, 5]


@given(st.integers(0, 40), st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 6))
def test_a_block_is_whole_once_all_its_bytes_have_come(
    offset: int, receipts: list[int], size: int
) -> None:
    whole: list[int] = []
    blocks = 1 + (offset + sum(receipts)) // size
    views = [memoryview(bytearray(size)) for _ in range(blocks)]
    region = BlocksRegion(views, ignore, whole.append)
    came = 0
    for nbytes in receipts:
        came += nbytes
        region.on_bytes(offset, came)
        covered = [
            index
            for index in range(blocks)
            if offset <= index * size and (index + 1) * size <= offset + came
        ]
        assert whole == covered
    assert region.awaited == blocks


def test_what_is_written_to_a_block_that_was_whole_is_noticed() -> None:
    views = [memoryview(bytearray(4)) for _ in range(4)]
    region = BlocksRegion(views, ignore, ignore)
    region.resolve(0, 8)
    region.resolve(8, 2)
    region.resolve(10, 2)
    region.on_bytes(0, 7)
    region.on_write(pack_run(2, 1))
    assert not region.rewritten
    region.resolve(4, 4)
    assert not region.rewritten
    region.resolve(3, 1)
    region.resolve(11, 5)
    assert region.rewritten == {0, 2}


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32), st.integers(0, 40))
def test_immediate_data_says_which_blocks_a_write_brings(
    first: int, blocks: int, total: int
) -> None:
    found = list(unpack_run(pack_run(first, blocks), total))
    assert found == [index for index in range(total) if first <= index < first + blocks]
