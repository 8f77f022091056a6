"""Memory that comes back is used again, by one buffer at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.memory.ranges import ALIGNMENT
from dualpath.model.emulated_memory import EmulatedMemory, NumpyBuffer

PAGE = ALIGNMENT


def test_what_came_back_is_used_again() -> None:
    memory = EmulatedMemory(8 * PAGE)
    first = memory.allocate(PAGE + 1)
    first.wire[:] = b"x" * (PAGE + 1)
    first.free()
    again = memory.allocate(PAGE)
    assert bytes(again.wire) == b"x" * PAGE
    assert again.nbytes == PAGE


def test_what_finds_no_room_has_memory_of_its_own() -> None:
    memory = EmulatedMemory(2 * PAGE, shared=True)
    assert memory.shared is not None
    buffers = [memory.allocate(nbytes) for nbytes in (3 * PAGE, PAGE + 1, 1)]
    for number, buffer in enumerate(buffers):
        buffer.wire[:] = bytes([number + 1]) * buffer.nbytes
    assert bytes(memory.shared.view[: PAGE + 1]) == b"\2" * (PAGE + 1)
    assert bytes(buffers[0].wire) == b"\1" * 3 * PAGE
    assert bytes(buffers[2].wire) == b"\3"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * PAGE)), max_size=40))
def test_buffers_in_use_never_share_memory(steps: list[tuple[bool, int]]) -> None:
    memory = EmulatedMemory(5 * PAGE)
    used: list[tuple[NumpyBuffer, bytes]] = []
    for number, (take, size) in enumerate(steps):
        if take or not used:
            buffer = memory.allocate(size)
            buffer.wire[:] = bytes([number]) * size
            used.append((buffer, bytes([number]) * size))
        else:
            used.pop(size % len(used))[0].free()
        for buffer, content in used:
            assert bytes(buffer.wire) == content
    for buffer, _ in used:
        buffer.free()
        buffer.free()  # Twice does no harm.
        assert (buffer.nbytes, len(buffer.wire)) == (0, 0)
