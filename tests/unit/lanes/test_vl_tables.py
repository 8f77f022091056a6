"""InfiniBand's arithmetic: what comes out is compared with shares worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpath.lanes.arbiter import Arbiter
from dualpath.lanes.vl_tables import PACKET_BYTES, Entry, VlTables

PAPER_HIGH: list[Entry] = [(0, 192), (1, 192), (2, 0), (3, 192)]
PAPER_LOW: list[Entry] = [(0, 192), (1, 192), (2, 64), (3, 192)]


def shares(arbiter: Arbiter[int], sizes: list[list[int]], total: int) -> list[float]:
    """Of each lane, while all always have something; `sizes` of their chunks, in turns."""
    turns = [0] * len(sizes)
    sent = [0] * len(sizes)

    def push(lane: int) -> None:
        arbiter.push(0, lane, sizes[lane][turns[lane] % len(sizes[lane])])
        turns[lane] += 1

    for lane in range(len(sizes)):
        push(lane)
    while sum(sent) < total:
        ticket = arbiter.pop()
        assert ticket is not None
        sent[ticket.lane] += ticket.nbytes
        push(ticket.lane)
    return [nbytes / sum(sent) for nbytes in sent]


def order(arbiter: Arbiter[int], lanes: int, count: int, nbytes: int) -> list[int]:
    for lane in range(lanes):
        for _ in range(count):
            arbiter.push(0, lane, nbytes)
    return [ticket.lane for _ in range(count) if (ticket := arbiter.pop())]


def test_the_high_table_sends_its_limit_then_the_low_one_a_packet() -> None:
    arbiter: Arbiter[int] = VlTables((0, 1), [(0, 1)], [(1, 1)], high_limit=3)
    expected = [0, 0, 0, 1] * 5
    assert order(arbiter, 2, 20, PACKET_BYTES) == expected


def test_a_limit_of_0_is_a_single_packet() -> None:
    arbiter: Arbiter[int] = VlTables((0, 1), [(0, 255)], [(1, 1)], high_limit=0)
    assert order(arbiter, 2, 10, 100) == [0, 1] * 5


def test_a_limit_of_255_leaves_the_low_table_what_is_over() -> None:
    arbiter: Arbiter[int] = VlTables((0, 1), [(0, 1)], [(1, 1)], high_limit=255)
    assert order(arbiter, 2, 1000, PACKET_BYTES) == [0] * 1000
    left = [ticket.lane for _ in range(1000) if (ticket := arbiter.pop())]
    assert left == [1] * 1000


def test_weights_are_in_units_of_64_bytes_and_the_last_packet_goes_whole() -> None:
    """VL 0 may send 2 × 64 bytes: packets of 100 bytes count as 2 units each, of 65 as 2, of 64 as 1."""
    tables: tuple[list[Entry], list[Entry]] = ([], [(0, 2), (1, 1)])
    for nbytes, expected in ((100, [0, 1]), (65, [0, 1]), (64, [0, 0, 1])):
        arbiter: Arbiter[int] = VlTables((0, 1), *tables, high_limit=0)
        assert order(arbiter, 2, 6, nbytes) == (expected * 3)[:6]


def test_entries_without_weight_or_packets_are_passed_over() -> None:
    arbiter: Arbiter[int] = VlTables((0, 2), [(1, 9), (0, 0)], [(0, 1), (2, 1)], high_limit=7)
    assert order(arbiter, 2, 4, PACKET_BYTES) == [0, 1, 0, 1]


def test_a_vl_may_have_several_entries() -> None:
    arbiter: Arbiter[int] = VlTables((0, 1), [], [(0, 1), (1, 1), (0, 1)], high_limit=0)
    assert order(arbiter, 2, 6, PACKET_BYTES) == [0, 1, 0, 0, 1, 0]


@settings(max_examples=3)
@given(st.lists(st.sampled_from([1 << 12, 1 << 16, 1 << 18]), min_size=1, max_size=4))
def test_the_papers_tables_leave_the_low_lane_a_tenth_of_a_percent(sizes: list[int]) -> None:
    """240 × 4096 bytes of the high table, then a packet of the low one: 3 of 4 times of VL 0 there too
    (192 units are 3 packets, 64 are 1). That holds for chunks of any size."""
    arbiter: Arbiter[int] = VlTables((0, 2), PAPER_HIGH, PAPER_LOW, high_limit=240)
    period = 4 * (240 * 4096 + PACKET_BYTES)
    high, low = shares(arbiter, [sizes, [1 << 16]], total=80 * period)
    assert low == pytest.approx(PACKET_BYTES / period, rel=0.25)
    assert high + low == pytest.approx(1)


def test_all_four_vls_of_the_paper() -> None:
    """VLs 0, 1 and 3 share alike; VL 2 has 64 of 640 units of the low table's packets."""
    arbiter: Arbiter[int] = VlTables((0, 1, 2, 3), PAPER_HIGH, PAPER_LOW, high_limit=240)
    found = shares(arbiter, [[PACKET_BYTES]] * 4, total=30 * 10 * 241 * PACKET_BYTES)
    assert found[2] == pytest.approx(1 / 10 / 241, rel=0.05)
    for vl in (0, 1, 3):
        assert found[vl] == pytest.approx((1 - found[2]) / 3, rel=0.02)


@settings(max_examples=30)
@given(
    st.integers(1, 255),
    st.integers(1, 255),
    st.lists(st.integers(1, 1 << 16), max_size=3),
    st.lists(st.integers(1, 1 << 16), max_size=3),
)
def test_one_table_shares_by_weights_but_for_a_packet_of_each_turn(
    left: int, right: int, left_sizes: list[int], right_sizes: list[int]
) -> None:
    arbiter: Arbiter[int] = VlTables((0, 1), [(0, left), (1, right)], [], high_limit=255)
    sizes = [[*left_sizes, 1 << 16], [*right_sizes, 1 << 16]]
    found = shares(arbiter, sizes, total=10 << 20)
    # A turn takes its weight and up to a packet more; units of 64 are begun, so small packets count for more.
    turns = [(weight * 64, weight * 64 + PACKET_BYTES) for weight in (left, right)]
    smallest = min(*sizes[0], *sizes[1], 64) / 64
    low = turns[0][0] * smallest / (turns[0][0] * smallest + turns[1][1])
    high = turns[0][1] / (turns[0][1] + turns[1][0] * smallest)
    assert low - 0.02 <= found[0] <= high + 0.02


def test_a_lane_that_no_table_serves_is_refused() -> None:
    with pytest.raises(ValueError, match="VL 2 has no weight"):
        VlTables((0, 2), [(0, 1), (2, 0)], [(1, 1)], high_limit=1)
    with pytest.raises(ValueError, match="of its own"):
        VlTables((0, 0), [(0, 1)], [], high_limit=1)
    with pytest.raises(ValueError, match="255"):
        VlTables((0,), [(0, 1)], [], high_limit=256)
