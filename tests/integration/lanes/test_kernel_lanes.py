"""What a network that knows only DSCP or SO_PRIORITY sees of the lanes, between two network namespaces."""

from __future__ import annotations

import pytest
from benchmarks.kernel_lanes import measure, network, why_not

from dualpath.lanes import Lane

pytestmark = pytest.mark.slow

MBIT_PER_S, SECONDS = 20, 6.0


@pytest.fixture(scope="module", autouse=True)
def _where_it_can_run() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("by", ["dscp", "priority"])
def test_the_kernel_gives_each_lane_the_share_of_its_class(by: str) -> None:
    with network(MBIT_PER_S, by) as net:
        shares = measure(net, by, SECONDS)
    # Where this machine stalls, the high lane leaves bandwidth to the low one.
    assert shares.high > 0.9
    assert shares.by_class[Lane.LOW] > 0


def test_without_lanes_all_traffic_is_of_one_class() -> None:
    with network(MBIT_PER_S, "dscp") as net:
        shares = measure(net, "dscp", SECONDS, lanes_on=False)
    assert shares.by_class[Lane.HIGH] == 0
    assert shares.by_class[Lane.LOW] > 0


@pytest.mark.parametrize("lane", list(Lane))
def test_a_lane_alone_is_of_its_class_alone(lane: Lane) -> None:
    with network(MBIT_PER_S, "dscp") as net:
        shares = measure(net, "dscp", SECONDS, lanes=(lane,))
    other = Lane.LOW if lane is Lane.HIGH else Lane.HIGH
    assert shares.by_class[lane] > 100 * shares.by_class[other]
