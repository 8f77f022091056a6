"""Memory that comes back is used again, by one buffer at a time, and only so much of it is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.emulated_memory import EmulatedMemory, NumpyBuffer


def test_what_came_back_is_used_again_for_as_much_or_a_little_less() -> None:
    memory = EmulatedMemory(1 << 20)
    first = memory.allocate(1000)
    first.wire[:] = b"x" * 1000
    first.free()
    again = memory.allocate(600)
    assert bytes(again.wire) == b"x" * 600
    assert again.nbytes == 600


def test_no_more_is_kept_than_may_be() -> None:
    memory = EmulatedMemory(1500)
    buffers = [memory.allocate(1000) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        buffer.wire[:] = bytes([number + 1]) * 1000
        buffer.free()
    kept = memory.allocate(1000)
    assert bytes(kept.wire) == b"\2" * 1000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=40))
def test_buffers_in_use_never_share_memory(steps: list[tuple[bool, int]]) -> None:
    memory = EmulatedMemory(500)
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
