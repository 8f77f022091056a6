"""Settings become what UCX is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.transport import needs_rdma

from dualpath.lanes import Lane, PacedNic
from dualpath.settings import Settings
from dualpath.transport.making import make_endpoint
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.samehost import SameHostEndpoint
from dualpath.transport.tcp import TcpEndpoint


def ucx(number: int = 0, **settings: Any) -> dict[Lane, dict[str, str]]:
    """What the agents of each lane are told, of the NIC of this number."""
    given = Settings(transport="rdma", secret="s", **settings)
    endpoint = make_endpoint(given, "e", PacedNic("n"), number=number)
    assert isinstance(endpoint, RdmaEndpoint)
    return {
        lane: dict(pair.split("=") for pair in fabric.config.split(","))
        for lane, fabric in endpoint._fabrics.items()
    }


def test_without_the_setting_it_is_tcp() -> None:
    made = make_endpoint(Settings(secret="s"), "e", PacedNic("n"))
    assert type(made) is TcpEndpoint


def test_told_to_it_reads_the_memory_of_processes_of_its_host() -> None:
    made = make_endpoint(Settings(secret="s", same_host="shared-memory"), "e", PacedNic("n"))
    assert type(made) is SameHostEndpoint


@needs_rdma
def test_a_loopback_host_listens_on_loopback_alone() -> None:
    assert ucx()[Lane.LOW]["NET_DEVICES"] == "lo"
    assert "NET_DEVICES" not in ucx(host="192.0.2.1")[Lane.LOW]


@needs_rdma
def test_memory_that_cannot_be_fenced_is_never_reached() -> None:
    assert all(config["TLS"] == "^cma" for config in ucx().values())


@needs_rdma
def test_each_nic_has_its_device_and_the_last_serves_the_rest() -> None:
    devices = ("mlx5_0:1", "mlx5_1:1")
    names = [ucx(n, rdma_devices=devices)[Lane.HIGH]["NET_DEVICES"] for n in range(4)]
    assert names == ["mlx5_0:1", "mlx5_1:1", "mlx5_1:1", "mlx5_1:1"]


@needs_rdma
def test_lanes_have_their_service_levels_and_traffic_classes() -> None:
    told = ucx(rdma_sl=(3, 1), lane_dscp=(40, 10))
    assert [told[lane]["IB_SL"] for lane in Lane] == ["3", "1"]
    # A traffic class is the DSCP, and two bits of congestion notification.
    assert [told[lane]["IB_TRAFFIC_CLASS"] for lane in Lane] == ["160", "40"]
    assert "IB_SL" not in ucx()[Lane.HIGH]


@needs_rdma
def test_without_lanes_all_is_the_low_one() -> None:
    told = ucx(lanes=False, rdma_sl=(3, 1), lane_dscp=(40, 10))
    assert told[Lane.HIGH] == told[Lane.LOW]


@pytest.mark.parametrize("levels", [(16, 0), (-1, 0)])
def test_service_levels_have_four_bits(levels: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="rdma_sl"):
        Settings(transport="rdma", rdma_sl=levels)
