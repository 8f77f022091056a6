from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.storage.leases import LeaseTable


def test_a_block_is_held_until_its_last_lease_ends() -> None:
    table = LeaseTable()
    table.grant(1, ["a", "b"], end=10.0)
    table.grant(2, ["b"], end=20.0)
    table.expire(9.9)
    assert table.holds("a")
    table.expire(10.0)
    assert not table.holds("a")
    assert table.holds("b")
    table.release(2)
    assert not table.holds("b")
    assert len(table) == 0


def test_releasing_what_has_ended_does_nothing_and_numbers_are_not_shared() -> None:
    table = LeaseTable()
    table.release(5)
    table.grant(5, ["a", "a"], end=1.0)
    with pytest.raises(ValueError, match="in use"):
        table.grant(5, ["b"], end=1.0)
    table.release(5)
    table.release(5)
    assert not table.holds("a")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("grant"), st.sets(st.integers(0, 5)), st.floats(0, 100)),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.floats(0, 100)),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_it_holds_exactly_what_open_leases_name(operations: list[tuple[object, ...]]) -> None:
    table, model, granted, now = LeaseTable(), dict[int, tuple[float, set[int]]](), 0, 0.0
    for operation in operations:
        match operation:
            case ("grant", set(blocks), float(end)):
                table.grant(granted, blocks, end)
                model[granted] = (end, blocks)
                granted += 1
            case ("release", int(lease)):
                table.release(lease)
                model.pop(lease, None)
            case ("expire", float(to)):
                now = max(now, to)
                table.expire(now)
                model = {lease: part for lease, part in model.items() if part[0] > now}
        held = set().union(*(blocks for _, blocks in model.values()))
        assert {block for block in range(6) if table.holds(block)} == held
        assert len(table) == len(model)
