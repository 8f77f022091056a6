"""Extents are cut and joined without losing or doubling a byte."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.transport.frames import MalformedFrame
from dualpath.transport.rdma.extents import (
    MAX_EXTENTS,
    Extent,
    pack,
    pair,
    take_extents,
    take_views,
    total,
    unpack,
)

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def laid_out(sizes: list[int], start: int, gap: int) -> list[Extent]:
    """Extents of these sizes, one behind the other with gaps."""
    extents = []
    for size in sizes:
        extents.append((start, size))
        start += size + gap
    return extents


def every_byte(extents: list[Extent]) -> list[int]:
    return [address + i for address, nbytes in extents for i in range(nbytes)]


@given(lengths, st.data())
def test_pairs_have_the_same_lengths_and_cover_both_sides(
    sizes: list[int], data: st.DataObject
) -> None:
    local = laid_out(sizes, 1000, 3)
    left = sum(sizes)
    others = []
    while left:
        others.append(data.draw(st.integers(1, left)))
        left -= others[-1]
    remote = laid_out(others, 90_000, 7)
    first, second = pair(local, remote)
    assert [n for _, n in first] == [n for _, n in second]
    assert every_byte(first) == every_byte(local)
    assert every_byte(second) == every_byte(remote)
    assert len(first) <= len(local) + len(remote) - 1


@given(lengths, st.data())
def test_taking_is_cutting_in_order(sizes: list[int], data: st.DataObject) -> None:
    whole = laid_out(sizes, 0, 5)
    memory = bytes(range(256)) * 8
    extents, views = deque(whole), deque(memoryview(memory)[a : a + n] for a, n in whole)
    taken: list[Extent] = []
    seen = b""
    while extents:
        nbytes = data.draw(st.integers(1, total(extents)))
        part = take_extents(extents, nbytes)
        assert total(part) == nbytes
        taken += part
        seen += b"".join(take_views(views, nbytes))
    assert every_byte(taken) == every_byte(whole)
    assert seen == b"".join(memory[a : a + n] for a, n in whole)
    assert not views


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**64 - 1)), min_size=1))
def test_what_is_packed_comes_out_again(extents: list[Extent]) -> None:
    assert unpack(pack(extents)) == extents


@pytest.mark.parametrize(
    "data", [b"", bytes(15), bytes(17), pack([(5, 0)]), pack([(1, 1), (2, 0)])]
)
def test_what_describes_no_memory_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        unpack(data)


def test_a_description_of_the_most_extents_fits_a_frame() -> None:
    assert len(pack([(0, 1)] * MAX_EXTENTS)) == 64 * 1024
