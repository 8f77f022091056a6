from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.region import BlocksRegion


@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_a_region_is_its_blocks_end_to_end(blocks: int, size: int, data: st.DataObject) -> None:
    memory = [bytearray(size) for _ in range(blocks)]
    region = BlocksRegion([memoryview(block) for block in memory], lambda _: None)
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
    views = [memoryview(bytearray(4))] * 3
    region = BlocksRegion(views, landed.append)
    for imm in (2, 2, 0, 7, 2**60):
        region.on_write(imm)
    assert (landed, region.awaited) == ([2, 0], 1)
