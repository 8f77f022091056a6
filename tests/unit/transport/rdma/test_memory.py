"""Where memory lies, and which of it is pinned."""

from __future__ import annotations

import ctypes

from dualpath.transport.rdma.memory import Pinned, extent_of


def test_an_extent_is_where_the_bytes_are() -> None:
    memory = bytearray(b"abcdef")
    address, nbytes = extent_of(memoryview(memory)[2:5])
    assert ctypes.string_at(address, nbytes) == b"cde"
    assert extent_of(memoryview(b"constant"))[1] == 8
    assert extent_of(memoryview(b""))[1] == 0


def test_pieces_of_pinned_memory_are_found_and_neighbours_joined() -> None:
    memory, pinned = memoryview(bytearray(1000)), Pinned()
    start, _ = pinned.add(memory) or (0, 0)
    found = pinned.extents([memory[0:100], memory[100:300], memory[500:600]])
    assert found == [(start, 300), (start + 500, 100)]
    assert pinned.extents([]) == []


def test_what_is_not_pinned_to_its_end_is_not_pinned() -> None:
    memory, pinned = memoryview(bytearray(1000)), Pinned()
    pinned.add(memory[200:800])
    assert pinned.extents([memory[200:800]]) is not None
    for piece in (memory[199:300], memory[700:801], memory[0:100], memory[900:]):
        assert pinned.extents([memory[300:400], piece]) is None
    assert pinned.extents([memoryview(bytearray(10))]) is None


def test_pinning_twice_registers_once() -> None:
    memory, pinned = memoryview(bytearray(1000)), Pinned()
    assert pinned.add(memory) is not None
    assert pinned.add(memory[10:20]) is None
    assert pinned.add(memory[:0]) is None
    assert len(pinned.ranges) == 1


def test_pinned_memory_stays_mapped() -> None:
    memory, pinned = bytearray(1000), Pinned()
    pinned.add(memoryview(memory))
    try:
        memory.clear()
    except BufferError:
        held = True
    else:
        held = False
    assert held
    pinned.close()
    memory.clear()
