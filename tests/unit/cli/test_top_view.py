from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from dualpath.cli.top_view import Look, frame, lane_rates, nics_table
from dualpath.cluster.processes import identify
from dualpath.cluster.record import ClusterRecord, Ready, ServiceRecord
from dualpath.cluster.status import Status
from dualpath.wire.control import ClusterStatus, NodeView
from dualpath.wire.types import WAIT_BOUNDS_S, EngineLoad, NicUse, NodeStatus

CLASSES = len(WAIT_BOUNDS_S) + 1


def waits(**counts: int) -> tuple[int, ...]:
    """`at_once` and `ms5` (up to 5 ms) and `forever`."""
    made = [0] * CLASSES
    made[0] = counts.get("at_once", 0)
    made[WAIT_BOUNDS_S.index(5e-3)] = counts.get("ms5", 0)
    made[-1] = counts.get("forever", 0)
    return tuple(made)


def look(
    at_s: float,
    *nics: NicUse,
    read_q: dict[str, int] | None = None,
    paths: dict[str, int] | None = None,
    problem: str | None = None,
) -> Look:
    process = identify(os.getpid())
    assert process is not None
    services = (
        ServiceRecord("prefill-0", "prefill", process, Ready(1)),
        ServiceRecord("decode-0", "decode", process, Ready(2)),
    )
    record = ClusterRecord(process, "ready", "tiny", "dualpath", "nats://h:1", 5.0, services)
    nodes = tuple(
        NodeView(
            node_id=name,
            role="prefill",
            seconds_since_fetch=0.1,
            engines=(EngineLoad(0, 2, 300, 4000),),
            status=NodeStatus(read_q_tokens=tokens),
        )
        for name, tokens in (read_q or {}).items()
    )
    cluster = None if problem else ClusterStatus(NodeStatus(), nodes, ("gateway-0",), 3, 5)
    counters = {f"path_{path}": count for path, count in (paths or {}).items()}
    processes = {"prefill-0": NodeStatus(nics=nics, counters=counters)}
    return Look(at_s, Status(record, cluster, problem, processes))


def shown(before: Look, now: Look) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80).print(frame(before, now))
    return stream.getvalue()


def row(text: str, name: str) -> list[str]:
    """Cells of the line that begins so, without bars."""
    line = next(line for line in text.splitlines() if line.strip().startswith(name))
    return [cell for part in line.split("  ") if (cell := part.strip(" █▉▊▋▌▍▎▏"))]


def use(lane: str, direction: str, nbytes: int, **more: object) -> NicUse:
    return NicUse("prefill-0.cnic0", lane, direction, nbytes, **more)  # type: ignore[arg-type]


def test_rates_and_shares_are_of_what_happened_in_between() -> None:
    before = look(10.0, use("high", "tx", 1000), use("low", "tx", 5000))
    now = look(
        12.0,
        use("high", "tx", 1000 + 3000, limit_bytes_per_s=2000.0),
        use("low", "tx", 5000 + 1000, waiting=4, waiting_bytes=77),
    )
    rates = lane_rates(before, now)
    high, low = (rates["prefill-0.cnic0", lane, "tx"] for lane in ("high", "low"))
    assert (high.bytes_per_s, low.bytes_per_s) == (1500, 500)
    assert (high.share, low.share) == (0.75, 0.25)
    assert high.part_of_limit == 0.75
    assert low.part_of_limit is None
    assert (low.waiting, low.waiting_bytes) == (4, 77)


def test_a_process_that_was_started_anew_counts_from_its_start() -> None:
    before = look(10.0, use("low", "tx", 5000, waits=waits(at_once=9)))
    now = look(11.0, use("low", "tx", 100, waits=waits(at_once=2)))
    rates = lane_rates(before, now)["prefill-0.cnic0", "low", "tx"]
    assert rates.bytes_per_s == 100
    assert sum(rates.waits) == 2


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({"at_once": 100}, 0.0),
        ({"at_once": 99, "ms5": 1}, 0.0),
        ({"at_once": 98, "ms5": 2}, 5e-3),
        ({"forever": 1}, float("inf")),
    ],
)
def test_the_wait_of_99_percent_is_that_of_the_chunks_in_between(
    counts: dict[str, int], expected: float | None
) -> None:
    long_ago = waits(ms5=1000)
    after = tuple(map(sum, zip(long_ago, waits(**counts), strict=True)))
    before = look(0.0, use("low", "rx", 1, waits=long_ago))
    now = look(1.0, use("low", "rx", 2, waits=after))
    assert lane_rates(before, now)["prefill-0.cnic0", "low", "rx"].wait_s(0.99) == expected


def test_the_picture_has_lanes_queues_and_paths() -> None:
    snic = NicUse("prefill-0.snic", "low", "rx", 0)
    before = look(0.0, snic, use("high", "tx", 0), use("low", "tx", 0), paths={"split": 1})
    now = look(
        1.0,
        NicUse("prefill-0.snic", "low", "rx", 3 << 20),
        use("high", "tx", 0),
        use("low", "tx", 2048, waiting=2, waiting_bytes=1024, waits=waits(ms5=3)),
        read_q={"prefill-0": 640, "decode-0": 0},
        paths={"split": 8},
    )
    text = shown(before, now)
    assert "5 requests running, 3 queued" in text
    assert "no answer from decode-0" in " ".join(text.split())
    cnic = " ".join(row(text, "prefill-0.cnic0"))
    for cell in ("low out", "2.0 KiB/s", "2: 1.0 KiB", "≤ 5 ms"):
        assert cell in cnic
    assert " high " not in text
    assert text.index("prefill-0.snic") < text.index("prefill-0.cnic0")
    assert "3.0 MiB/s" in " ".join(row(text, "prefill node (PE)"))
    assert row(text, "both (split)")[-2:] == ["7", "8"]
    assert row(text, "prefill-0 ")[:2] == ["prefill-0", "640"]


def test_a_scheduler_that_does_not_answer_is_said() -> None:
    now = look(1.0, problem="the scheduler does not answer: it is gone")
    assert "it is gone" in shown(now, now)


@pytest.mark.parametrize("columns", [60, 70, 80])
def test_narrow_terminals_get_fewer_columns_and_whole_figures(columns: int) -> None:
    flows = [
        use(
            lane,
            way,
            10**8,
            waiting=1,
            waiting_bytes=62_000,
            waits=waits(ms5=9),
            limit_bytes_per_s=2e8,
        )
        for lane in ("high", "low")
        for way in ("tx", "rx")
    ]
    stream = io.StringIO()
    console = Console(file=stream, width=columns)
    console.print(nics_table(look(1.0), look(2.0, *flows), columns))
    assert "…" not in stream.getvalue()
    cells = [line.split() for line in stream.getvalue().splitlines() if "cnic0" in line]
    assert cells[0][:6] == ["prefill-0.cnic0", "high", "in", "95.4", "MiB/s", "50%"]
