from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.entry import ENTRY_BYTES, NO_ENTRY, Entry, State, Table, encode_entry
from dualpath.kvstore.index import MAX_SLOTS

ENTRIES = st.builds(
    Entry,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.floats(0, 1e12),
    st.integers(0, 2**32 - 1),
    st.sampled_from(State),
)


@given(st.integers(0, 1000), st.lists(st.none() | ENTRIES, max_size=8))
def test_a_table_gives_back_what_was_written_into_it(
    number: int, entries: list[Entry | None]
) -> None:
    first = number * MAX_SLOTS
    table = b"".join(
        NO_ENTRY if entry is None else encode_entry(first + at, entry)
        for at, entry in enumerate(entries)
    )
    assert len(table) == ENTRY_BYTES * len(entries)
    expected = [(first + at, entry) for at, entry in enumerate(entries) if entry is not None]
    assert list(Table(first, table)) == expected


@given(ENTRIES, st.integers(0, ENTRY_BYTES - 1), st.integers(1, 255))
def test_a_damaged_entry_is_none(entry: Entry, at: int, flip: int) -> None:
    raw = bytearray(encode_entry(7, entry))
    raw[at] ^= flip
    assert list(Table(7, bytes(raw))) == []


@given(ENTRIES, ENTRIES, st.integers(1, ENTRY_BYTES - 1))
def test_a_torn_entry_is_none_or_one_of_both(before: Entry, after: Entry, cut: int) -> None:
    old, new = encode_entry(7, before), encode_entry(7, after)
    torn = new[:cut] + old[cut:]
    found = list(Table(7, torn))
    assert found in ([], [(7, before)], [(7, after)])


@given(ENTRIES)
def test_an_entry_in_another_slots_place_is_none(entry: Entry) -> None:
    assert list(Table(8, encode_entry(7, entry))) == []
