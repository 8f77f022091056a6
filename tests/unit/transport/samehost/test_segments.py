"""Where payload lies in shared memory, and the copying of it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.memory.copying import Bytes
from dualpath.memory.shared import SharedMemory
from dualpath.transport.frames import MAX_WRITE_BYTES, MalformedFrame
from dualpath.transport.samehost import available
from dualpath.transport.samehost.copying import SHARED_BYTES, Copies
from dualpath.transport.samehost.segments import (
    _EXTENT,
    MAX_EXTENTS,
    MAX_SEGMENTS,
    Extent,
    Mapped,
    Offered,
    Word,
    unpack,
)

pytestmark = pytest.mark.skipif(not available(), reason="this kernel cannot seal memory")


@pytest.fixture
def offered() -> Iterator[Offered]:
    made = Offered()
    yield made
    made.close()


@pytest.fixture
def copies() -> Iterator[Copies]:
    made = Copies()
    yield made
    made.close()


def shared(nbytes: int) -> SharedMemory:
    made = SharedMemory("test", nbytes)
    made.view[:] = random.Random(nbytes).randbytes(nbytes)
    return made


def rows(view: memoryview) -> Bytes:
    return np.frombuffer(view.tobytes(), np.uint8).reshape(1, -1)


def test_the_peer_sees_what_the_writer_packed(offered: Offered) -> None:
    memories = [shared(8192), shared(16384)]
    for memory in memories:
        offered.add(memory)
    first, second = (memory.view for memory in memories)
    pieces = [second[100:300], first[:10], first[10:50], first[60:70], second[16000:]]
    packed = offered.pack(pieces, 2)
    assert packed is not None
    extents = unpack(packed)
    assert len(extents) == 4, "neighbours are joined"
    word = Word()
    mapped = Mapped([word.shared.fd, *offered.fds])
    seen = mapped.pieces(extents)
    assert b"".join(array.tobytes() for array in seen) == b"".join(pieces)
    assert not any(array.flags.writeable for array in seen)
    assert not mapped.given_up
    word.give_up()
    assert mapped.given_up


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5)), min_size=1, max_size=30))
def test_pieces_at_equal_distances_are_joined_and_no_others_change(
    places: list[tuple[int, int]],
) -> None:
    memory, word = shared(4096), Word()
    payload = b"".join(_EXTENT.pack(0, nbytes, 10 * at) for at, nbytes in places)
    extents = unpack(payload)
    seen = Mapped([word.shared.fd, memory.fd]).pieces(extents)
    wanted = (memory.view[10 * at : 10 * at + nbytes] for at, nbytes in places)
    assert b"".join(array.tobytes() for array in seen) == b"".join(wanted)


@pytest.mark.parametrize("step", [7, -7, 0])
def test_a_row_of_pieces_is_one_extent(step: int) -> None:
    payload = b"".join(_EXTENT.pack(0, 3, 100 + step * number) for number in range(9))
    assert unpack(payload) == [Extent(0, 3, 100, 9, step)]


def test_memory_that_is_not_shared_with_the_peer_is_not_packed(offered: Offered) -> None:
    memory, later = shared(4096), shared(4096)
    offered.add(memory)
    offered.add(later)
    assert offered.pack([memory.view], 1) is not None
    assert offered.pack([later.view], 1) is None
    assert offered.pack([memory.view, memoryview(bytes(10))], 2) is None
    assert offered.pack([], 2) is None
    scattered = [memory.view[n : n + 1] for n in range(0, 4096, 2)]
    assert len(scattered) <= MAX_EXTENTS
    assert offered.pack(scattered, 2) is not None
    assert offered.pack(scattered * 3, 2) is None


def test_no_more_segments_than_a_peer_maps_are_offered(offered: Offered) -> None:
    for _ in range(MAX_SEGMENTS + 3):
        offered.add(shared(4096))
    assert len(offered.fds) == MAX_SEGMENTS


def test_closing_gives_the_descriptors_back() -> None:
    memory = shared(4096)
    offered = Offered()
    before = len(os.listdir("/proc/self/fd"))
    offered.add(memory)
    offered.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "extent",
    [
        Extent(1, 10, 0),
        Extent(0, 4097, 0),
        Extent(0, 1, 4096),
        Extent(0, 1, 1 << 63),
        Extent(0, 10, 0, 3, 2044),
        Extent(0, 10, 100, 3, -51),
    ],
)
def test_what_lies_outside_is_malformed(extent: Extent) -> None:
    word, memory = Word(), shared(4096)
    mapped = Mapped([word.shared.fd, memory.fd])
    with pytest.raises(MalformedFrame, match="of segment"):
        mapped.pieces([Extent(0, 1, 0), extent])


@pytest.mark.parametrize("payload", [b"", b"x", bytes(17), _EXTENT.pack(0, MAX_WRITE_BYTES, 0) * 2])
def test_what_is_no_pull_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedFrame, match="PULL"):
        unpack(payload)


def test_memory_that_its_owner_could_cut_is_not_mapped() -> None:
    word = Word()
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 4096)
        with pytest.raises(ValueError, match="may cut"):
            Mapped([word.shared.fd, fd])
    finally:
        os.close(fd)
    with pytest.raises(ValueError, match="1 descriptors"):
        Mapped([word.shared.fd])


@given(st.lists(st.integers(0, 90), max_size=12), st.lists(st.integers(1, 90), max_size=12))
def test_copying_lays_bytes_end_to_end(sizes: list[int], cuts: list[int]) -> None:
    data = random.Random(len(sizes)).randbytes(sum(sizes))
    sources, at = [], 0
    for size in sizes:
        sources.append(memoryview(data)[at : at + size])
        at += size
    target = bytearray(len(data))
    targets, at = [], 0
    for cut in cuts:
        targets.append(memoryview(target)[at : at + cut])
        at += cut
    targets.append(memoryview(target)[at:])
    copies = Copies()
    copies.copy([rows(source) for source in sources], targets)
    copies.close()
    assert target == data


def test_a_large_copy_is_whole_when_the_call_returns(copies: Copies) -> None:
    data = random.Random(1).randbytes(SHARED_BYTES + 12345)
    target = bytearray(len(data))
    view, part = memoryview(data), 100_000
    sources = [rows(view[n : n + part]) for n in range(0, len(data), part)]
    copies.copy(sources, [memoryview(target)])
    assert target == data


def test_a_large_copy_of_pieces_at_equal_distances_is_whole(copies: Copies) -> None:
    """Into one target, and into several."""
    data = np.frombuffer(random.Random(2).randbytes(10 << 20), np.uint8).reshape(10, -1)
    source = data[::-2, : 700 * 1024]
    for cuts in (1, 7):
        target = bytearray(source.size)
        part = len(target) // cuts
        targets = [memoryview(target)[n : n + part] for n in range(0, len(target), part)]
        copies.copy([source], targets)
        assert target == source.tobytes()
