from __future__ import annotations

import pytest

from dualpath.cluster.plan import describe_exit, meaning_of_loss, start_stages, stop_stages
from dualpath.settings import Settings


def test_shards_start_first_and_gateways_last() -> None:
    stages = start_stages(Settings(shards=2, prefill=1, decode=2, gateways=2, port=8000))
    assert [[service.name for service in stage] for stage in stages] == [
        ["storage-0", "storage-1", "scheduler"],
        ["prefill-0", "decode-0", "decode-1"],
        ["gateway-0", "gateway-1"],
    ]


def test_each_gateway_has_a_port_of_its_own() -> None:
    def ports(port: int) -> list[int | None]:
        return [service.port for service in start_stages(Settings(gateways=3, port=port))[-1]]

    assert ports(8000) == [8000, 8001, 8002]
    assert ports(0) == [0, 0, 0]


def test_the_clients_side_stops_first_and_nats_last() -> None:
    roles = {
        "nats": "nats",
        "storage-0": "storage",
        "scheduler": "scheduler",
        "decode-0": "decode",
        "prefill-0": "prefill",
        "gateway-0": "gateway",
    }
    stages = stop_stages(roles)
    assert [names for names, _ in stages] == [
        ["gateway-0"],
        ["decode-0", "prefill-0"],
        ["scheduler"],
        ["storage-0"],
        ["nats"],
    ]
    shares = [share for _, share in stages]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_cluster_that_has_not_started_all_stops_what_there_is() -> None:
    assert [names for names, _ in stop_stages({"model": "model"})] == [["model"]]
    roles = {"nats": "nats", "storage-0": "storage"}
    assert [names for names, _ in stop_stages(roles)] == [["storage-0"], ["nats"]]


@pytest.mark.parametrize(
    ("role", "left", "says"),
    [
        ("nats", 0, "new requests get 503"),
        ("scheduler", 0, "no new request can be placed"),
        ("storage", 1, "recomputed"),
        ("storage", 0, "every prompt is computed in full"),
        ("prefill", 1, "the 1 other prefill node goes on"),
        ("decode", 2, "the 2 other decode nodes go on"),
        ("decode", 0, "it was the last decode node"),
        ("gateway", 1, "its clients' requests are lost"),
        ("gateway", 0, "no request can be served"),
    ],
)
def test_a_loss_is_explained(role: str, left: int, says: str) -> None:
    assert says in meaning_of_loss(role, left)


def test_an_exit_is_described() -> None:
    assert describe_exit(0, None) == "ended by itself"
    assert describe_exit(3, None) == "failed with exit code 3"
    assert describe_exit(-9, "SIGKILL") == "was killed by SIGKILL"
    assert describe_exit(-64, None) == "was killed by signal 64"
