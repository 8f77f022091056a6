from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.index import BlockIndex, BlockName

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "fail", "use", "discard", "hold", "let go"]),
        st.integers(0, 9),
        st.integers(1, 40),
    ),
    max_size=60,
)


def name(number: int) -> BlockName:
    return BlockName("ab"[number % 2], bytes([number]))


@given(st.integers(1, 100), OPERATIONS)
def test_it_never_holds_more_than_its_capacity_and_gives_up_the_least_recently_used(
    capacity: int, operations: list[tuple[str, int, int]]
) -> None:
    index = BlockIndex(capacity)
    known: dict[BlockName, int] = {}
    held: set[BlockName] = set()
    for what, number, nbytes in operations:
        block = name(number)
        if what in ("write", "fail") and block not in known:
            kept = sum(size for other, size in known.items() if other in held)
            victims = index.reserve(nbytes, held.__contains__)
            if victims is None:
                assert kept + nbytes > capacity
                continue
            free = [other for other in known if other not in held]
            assert victims == free[: len(victims)]
            before = sum(known.values())
            for victim in victims:
                assert before + nbytes > capacity, "one too many"
                before -= known.pop(victim)
            if what == "write":
                index.add(block, nbytes)
                known[block] = nbytes
            index.unreserve(nbytes)
        elif what == "use":
            index.use(block)
            if block in known:
                known[block] = known.pop(block)
        elif what == "discard":
            index.discard(block)
            known.pop(block, None)
        elif what == "hold":
            held.add(block)
        elif what == "let go":
            held.discard(block)
        assert index.nbytes == sum(known.values()) <= capacity
        assert index.reserved_bytes == 0
        assert len(index) == len(known)
        for space in "ab":
            keys = [bytes([n]) for n in range(10)]
            assert list(index.present(space, keys)) == [(space, key) in known for key in keys]
            assert index.counts()[space] == sum(other.space == space for other in known)


def test_writes_under_way_have_to_fit_together() -> None:
    index = BlockIndex(10)
    assert index.reserve(6, lambda _: False) == []
    assert index.reserve(6, lambda _: False) is None
    index.add(name(1), 6)
    index.unreserve(6)
    assert index.reserve(6, lambda _: False) == [name(1)]


def test_without_a_capacity_nothing_gives_way() -> None:
    index = BlockIndex()
    for number in range(10):
        assert index.reserve(1 << 40, lambda _: False) == []
        index.add(name(number), 1 << 40)
        index.unreserve(1 << 40)
    assert len(index) == 10
