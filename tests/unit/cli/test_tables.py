from __future__ import annotations

import io
import os

from rich.console import Console

from dualpath.cli.tables import print_status
from dualpath.cluster.processes import ProcessId, identify
from dualpath.cluster.record import ClusterRecord, Ready, ServiceRecord
from dualpath.cluster.status import Status
from dualpath.wire.control import ClusterStatus, NodeView
from dualpath.wire.types import EngineLoad, NicUse, NodeStatus, PoolUse

GONE = ProcessId(2**22 + 1, 1, "boot")


def this_process() -> ProcessId:
    found = identify(os.getpid())
    assert found is not None
    return found


def record(*services: ServiceRecord) -> ClusterRecord:
    return ClusterRecord(this_process(), "ready", "tiny", "dualpath", "nats://h:1", 5.0, services)


def shown(status: Status) -> list[str]:
    stream = io.StringIO()
    print_status(status, Console(file=stream, width=120))
    return stream.getvalue().splitlines()


def test_processes_are_shown_with_their_ports_and_deaths() -> None:
    lines = shown(
        Status(
            record(
                ServiceRecord("nats", "nats", this_process()),
                ServiceRecord("prefill-0", "prefill", this_process(), Ready(9001)),
                ServiceRecord("decode-0", "decode", this_process()),
                ServiceRecord("decode-1", "decode", GONE, Ready(9002), exit_status=-9),
                ServiceRecord("decode-2", "decode", GONE, Ready(9003)),
                ServiceRecord("decode-3", "decode", GONE, Ready(9005), exit_status=0),
                ServiceRecord("storage-0", "storage", this_process(), Ready(9004)),
            ),
            None,
            "the scheduler does not answer: it is gone",
            {"prefill-0": NodeStatus(pools=(PoolUse("pe_slots", 5, 64),))},
        )
    )

    def row(name: str) -> str:
        return next(line for line in lines if f" {name} " in line)

    assert " ready " in row("nats")
    assert "9001" in row("prefill-0")
    assert " ready " in row("prefill-0")
    assert " does not answer " in row("storage-0")
    assert [line for line in lines if " pe_slots " in line and " 5 " in line]
    assert " starting " in row("decode-0")
    assert "dead (-9)" in row("decode-1")
    assert " dead " in row("decode-2")
    assert " left " in row("decode-3")
    assert lines[-1] == "the scheduler does not answer: it is gone"


def test_nodes_queues_pools_and_nics_are_shown() -> None:
    status = NodeStatus(
        pools=(PoolUse("pe_slots", 3, 64, 2),),
        nics=(
            NicUse("prefill-0.snic", "low", "tx", 100),
            NicUse("prefill-0.snic", "low", "rx", 5 << 20),
        ),
        read_q_tokens=640,
    )
    engine = EngineLoad(0, seq=7, tok=1234, hbm_free_tokens=99)
    cluster = ClusterStatus(
        NodeStatus(),
        (NodeView("prefill-0", "prefill", 0.04, (engine,), status),),
        ("gateway-0",),
        4,
        5,
    )
    processes = {"prefill-0": status, "storage-0": NodeStatus(pools=(PoolUse("leases", 77, 0),))}
    text = "\n".join(shown(Status(record(), cluster, processes=processes)))
    assert "4 requests queued, 5 running; registered gateways: gateway-0" in text
    for value in ("1234", "99", "640", "0.0 s ago", "pe_slots", "100 B", "5.0 MiB", "leases", "77"):
        assert f" {value} " in text, value
