from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.storage.leases import LeaseTable


def test_a_block_is_held_until_its_last_lease_ends() -> None:
    table = LeaseTable()
    table.grant(1, "s", [b"a", b"b"], end=10.0)
    table.grant(2, "s", [b"b"], end=20.0)
    table.expire(9.9)
    assert table.holds("s", b"a")
    table.expire(10.0)
    assert not table.holds("s", b"a")
    assert table.holds("s", b"b")
    table.release(2)
    assert not table.holds("s", b"b")
    assert len(table) == 0


def test_releasing_what_has_ended_does_nothing_and_numbers_are_not_shared() -> None:
    table = LeaseTable()
    table.release(5)
    table.grant(5, "s", [b"a", b"a"], end=1.0)
    with pytest.raises(ValueError, match="in use"):
        table.grant(5, "s", [b"b"], end=1.0)
    table.release(5)
    table.release(5)
    assert not table.holds("s", b"a")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("grant"),
            st.sampled_from("st"),
            st.sets(st.sampled_from([b"a", b"b", b"c"])),
            st.floats(0, 100),
        ),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("expire"), st.floats(0, 100)),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_it_holds_exactly_what_open_leases_name(operations: list[tuple[object, ...]]) -> None:
    model: dict[int, tuple[float, set[tuple[str, bytes]]]] = {}
    table, granted, now = LeaseTable(), 0, 0.0
    for operation in operations:
        match operation:
            case ("grant", str(space), set(keys), float(end)):
                table.grant(granted, space, keys, end)
                model[granted] = (end, {(space, key) for key in keys})
                granted += 1
            case ("release", int(lease)):
                table.release(lease)
                model.pop(lease, None)
            case ("expire", float(to)):
                now = max(now, to)
                table.expire(now)
                model = {lease: part for lease, part in model.items() if part[0] > now}
        held = set().union(*(blocks for _, blocks in model.values()))
        names = [(space, key) for space in "st" for key in (b"a", b"b", b"c")]
        assert {name for name in names if table.holds(*name)} == held
        assert len(table) == len(model)
