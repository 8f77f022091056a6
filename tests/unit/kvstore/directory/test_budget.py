"""However reports and limits are delayed, clients of a directory keep within its capacity together."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.directory.budget import Budget, Report, headroom_bytes, share_out

CAPACITY = 1000
BLOCK = 10

client_numbers = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), client_numbers),
        st.tuples(st.just("end"), client_numbers),
        st.tuples(st.just("fail"), client_numbers),
        st.tuples(st.just("report"), client_numbers),
        st.tuples(st.just("hear"), client_numbers),
        st.tuples(st.just("census"), st.just(0)),
        st.tuples(st.just("remove"), st.integers(1, 30)),
    ),
    max_size=200,
)


@dataclass
class Disk:
    """The directory, its clients, and what the keeper has said and heard."""

    clients: list[Budget] = field(default_factory=lambda: [Budget(limited=True) for _ in range(3)])
    writing: list[int] = field(default_factory=lambda: [0, 0, 0])
    taken: int = 0
    reports: dict[str, Report] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    number: int = 0

    def step(self, what: str, which: int) -> None:
        client = self.clients[which % 3]
        match what:
            case "begin" if client.reserve(BLOCK):
                self.writing[which] += 1
            case "end" if self.writing[which]:
                self.writing[which] -= 1
                self.taken += BLOCK
                client.settle(BLOCK, stored=True)
            case "fail" if self.writing[which]:
                self.writing[which] -= 1
                client.settle(BLOCK, stored=False)
            case "report":
                self.reports[str(which)] = client.report(0, BLOCK)
            case "hear" if str(which) in self.limits:
                client.limit_bytes = self.limits[str(which)]
                client.census = self.number
            case "census":
                self.limits = share_out(
                    CAPACITY, self.taken, self.reports, self.limits, self.number
                )
                self.number += 1
            case "remove":
                self.taken -= min(self.taken, which * BLOCK)


@given(steps)
def test_the_capacity_is_kept_whatever_comes_late(doings: list[tuple[str, int]]) -> None:
    disk = Disk()
    for what, which in doings:
        disk.step(what, which)
        assert disk.taken + BLOCK * sum(disk.writing) <= CAPACITY


def test_who_is_not_limited_may_always_write() -> None:
    budget = Budget(limited=False)
    assert all(budget.reserve(1 << 40) for _ in range(10))


def test_a_client_that_nobody_has_counted_yet_writes_nothing() -> None:
    assert not Budget(limited=True).reserve(1)


def test_one_busy_client_gets_all_room_in_the_end_though_another_idles() -> None:
    disk = Disk()
    for _ in range(400):
        for which in (0, 1):
            disk.step("report", which)
        disk.step("census", 0)
        for which in (0, 1):
            disk.step("hear", which)
        disk.step("begin", 0)
        disk.step("end", 0)
    headroom = headroom_bytes(CAPACITY, disk.reports)
    assert disk.taken >= CAPACITY - headroom
