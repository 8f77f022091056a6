"""A NIC under a real event loop. Bounds are on what it granted, not on how long a busy machine took."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.wait import until

from dualpath.lanes import Lane, PacedNic, Priority, port
from dualpath.settings.vl import VlArbitration
from dualpath.wire.types import WAIT_BOUNDS_S, NicUse

CHUNK = 10_000


async def send(nic: PacedNic, lane: Lane, log: list[str], name: str) -> None:
    await nic.send(lane, min(CHUNK, nic.quantum_bytes))
    log.append(name)


async def send_all_the_time(nic: PacedNic, lane: Lane) -> None:
    while True:
        await nic.send(lane, nic.quantum_bytes)


def use_of(nic: PacedNic, lane: str, direction: str = "tx") -> NicUse:
    return next(use for use in nic.uses() if (use.lane, use.direction) == (lane, direction))


@asynccontextmanager
async def saturated(nic: PacedNic, *lanes: Lane, senders: int = 4) -> AsyncIterator[None]:
    """Each of `lanes` has something waiting at any time."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(send_all_the_time(nic, lane))
            for lane in lanes
            for _ in range(senders)
        ]
        yield
        for task in tasks:
            task.cancel()


async def test_an_unlimited_nic_grants_at_once_and_counts() -> None:
    nic = PacedNic("nic")
    for _ in range(3):
        await nic.send(Lane.HIGH, 100)
    await nic.receive(Lane.LOW, 50)
    await nic.local_copy(Lane.LOW, 10_000_000)
    assert nic.moved() == {
        (Lane.HIGH, "tx"): 300,
        (Lane.LOW, "tx"): 10_000_000,
        (Lane.HIGH, "rx"): 0,
        (Lane.LOW, "rx"): 10_000_050,
    }


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the high lane was used it counts as in use for good, however slow the machine is."""
    monkeypatch.setattr(port, "GUARD_S", 3600.0)


@pytest.mark.usefixtures("guarded")
async def test_only_what_would_not_wait_is_let_through_without_waiting() -> None:
    nic = PacedNic("nic")
    assert nic.try_send(Lane.LOW, nic.quantum_bytes)
    assert nic.try_receive(Lane.LOW, 50)
    assert not nic.try_send(Lane.LOW, nic.quantum_bytes + 1)
    assert not nic.try_receive(Lane.LOW, nic.quantum_bytes + 1)
    # While the high lane is in use, the low one gets a chunk per turn.
    assert nic.try_send(Lane.HIGH, 0)
    assert [nic.try_send(Lane.LOW, nic.quantum_bytes) for _ in range(2)] == [True, False]
    await asyncio.sleep(0)
    assert nic.try_send(Lane.LOW, 1)
    assert use_of(nic, "low").nbytes == 2 * nic.quantum_bytes + 1
    assert use_of(nic, "low", "rx").nbytes == 50
    paced = PacedNic("nic", 1e9)
    assert not paced.try_send(Lane.LOW, 1)
    assert not paced.try_receive(Lane.LOW, 1)
    assert set(paced.moved().values()) == {0}


async def test_no_more_than_the_bandwidth_is_granted() -> None:
    loop = asyncio.get_running_loop()
    nic = PacedNic("nic", 10e6)
    began = loop.time()
    for _ in range(60):
        await nic.send(Lane.LOW, nic.quantum_bytes)
        most = 2 * nic.quantum_bytes + (loop.time() - began) * 10e6
        assert nic.moved()[Lane.LOW, "tx"] <= most + 1


async def test_directions_do_not_share_bandwidth() -> None:
    nic = PacedNic("nic", 100.0)
    await nic.send(Lane.LOW, nic.quantum_bytes)
    # 40 s from now.
    waiting = asyncio.ensure_future(send(nic, Lane.LOW, [], "waits"))
    await nic.receive(Lane.LOW, nic.quantum_bytes)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    nic.close()


async def test_the_high_lane_gets_its_share_and_the_low_one_does_not_starve() -> None:
    nic = PacedNic("nic", 200e6, quantum_bytes=CHUNK, high_share=0.9)
    async with asyncio.TaskGroup() as group:
        senders = [
            group.create_task(send_all_the_time(nic, lane)) for lane in [*Lane] for _ in range(20)
        ]
        await until(lambda: nic.moved()[Lane.HIGH, "tx"] > 500 * CHUNK)
        for sender in senders:
            sender.cancel()
    moved = nic.moved()
    share = moved[Lane.LOW, "tx"] / (moved[Lane.LOW, "tx"] + moved[Lane.HIGH, "tx"])
    assert share == pytest.approx(0.1, rel=0.2)


async def test_without_lanes_all_are_served_in_order() -> None:
    nic = PacedNic("nic", 10e6, quantum_bytes=CHUNK, lanes=False)
    log: list[str] = []
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(send(nic, Lane(number % 2), log, str(number)))
    assert log == [str(number) for number in range(20)]
    assert nic.moved()[Lane.HIGH, "tx"] == nic.moved()[Lane.LOW, "tx"] == 10 * CHUNK


async def test_a_cancelled_wait_leaves_the_queue_and_costs_nothing() -> None:
    nic = PacedNic("nic", 5e6, quantum_bytes=CHUNK)
    log: list[str] = []
    waiting = [asyncio.ensure_future(send(nic, Lane.LOW, log, str(n))) for n in range(30)]
    await asyncio.sleep(0)
    for task in waiting[::2]:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    granted = [n for n in range(30) if str(n) in log]
    assert [n for n in granted if n % 2] == list(range(1, 30, 2))
    assert nic.moved()[Lane.LOW, "tx"] == len(log) * CHUNK


async def test_messages_go_before_bulk() -> None:
    nic = PacedNic("nic", 5e6, quantum_bytes=CHUNK)
    log: list[str] = []

    async def message() -> None:
        await nic.send(Lane.LOW, 100, Priority.MESSAGE)
        log.append("message")

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(send(nic, Lane.LOW, log, str(number)))
        await until(lambda: len(log) >= 1)
        before = len(log)
        group.create_task(message())
    assert log.index("message") <= before + 1


async def test_local_copies_are_charged_to_both_directions() -> None:
    nic = PacedNic("nic", 100e6)
    await asyncio.gather(nic.local_copy(Lane.LOW, 1_000_000), nic.local_copy(Lane.HIGH, 500_000))
    copying = asyncio.ensure_future(nic.local_copy(Lane.LOW, 10**9))
    await until(lambda: nic.moved()[Lane.LOW, "tx"] > 1_500_000)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    moved = nic.moved()
    assert moved[Lane.HIGH, "tx"] == moved[Lane.HIGH, "rx"] == 500_000
    assert abs(moved[Lane.LOW, "tx"] - moved[Lane.LOW, "rx"]) <= nic.quantum_bytes
    await nic.local_copy(Lane.LOW, 1000)


async def test_chunks_beyond_the_quantum_are_refused() -> None:
    nic = PacedNic("nic", 1e9, quantum_bytes=1000)
    with pytest.raises(ValueError, match="at most 1000"):
        await nic.send(Lane.LOW, 1001)
    with pytest.raises(ValueError, match="at most 1000"):
        await nic.receive(Lane.LOW, 1001)
    with pytest.raises(ValueError, match="high_share"):
        PacedNic("nic", high_share=1.0)


async def test_a_slow_nic_has_a_smaller_quantum() -> None:
    assert PacedNic("nic").quantum_bytes == 4 << 20
    assert PacedNic("nic", quantum_bytes=8 << 20).quantum_bytes == 8 << 20
    assert PacedNic("nic", 1e6).quantum_bytes == 5000
    assert PacedNic("nic", 400e9 / 8).quantum_bytes == 256 * 1024


async def test_a_chunk_of_the_high_lane_goes_although_the_low_one_owes() -> None:
    # A chunk of the low lane takes 50 s here.
    nic = PacedNic("nic", 100.0)
    await nic.send(Lane.LOW, nic.quantum_bytes)
    low = asyncio.ensure_future(nic.local_copy(Lane.LOW, 1))
    await nic.send(Lane.HIGH, nic.quantum_bytes // 2)
    assert not low.done()
    low.cancel()
    nic.close()


async def test_without_lanes_it_waits_behind_the_low_one() -> None:
    nic = PacedNic("nic", 100.0, lanes=False)
    await nic.send(Lane.LOW, nic.quantum_bytes)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await nic.send(Lane.HIGH, 1)
    nic.close()


async def test_infinibands_tables_arbitrate_where_they_are_chosen() -> None:
    """Half of what the high table's limit lets through is one packet: the lanes alternate by packets."""
    tables = VlArbitration(high="0:1", low="2:1", high_limit=1)
    # So slow that the NIC is the limit, and not the processor.
    nic = PacedNic("nic", 20e6, quantum_bytes=4096, tables=tables)
    async with saturated(nic, *Lane):
        await until(lambda: nic.moved()[Lane.HIGH, "tx"] > 400 * 4096)
    moved = nic.moved()
    assert moved[Lane.LOW, "tx"] == pytest.approx(moved[Lane.HIGH, "tx"], rel=0.1)
    nic.close()


async def test_what_cannot_wait_is_paced_too_and_not_counted() -> None:
    nic = PacedNic("nic", 100.0)
    nic.charge(Lane.LOW, "tx", 4000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await nic.send(Lane.LOW, 1)
    await nic.receive(Lane.LOW, 1)
    assert nic.moved()[Lane.LOW, "tx"] == 0
    nic.close()


@pytest.mark.usefixtures("guarded")
async def test_an_unlimited_nic_lets_one_low_chunk_go_before_the_high_lane_at_most() -> None:
    """However many low transfers are ready: the order in which tasks were made is theirs, then high's."""
    nic = PacedNic("nic")
    # From now on the high lane is in use.
    await nic.send(Lane.HIGH, 0)
    log: list[str] = []

    async def transfer(lane: Lane, chunks: int) -> None:
        for _ in range(chunks):
            await nic.send(lane, nic.quantum_bytes)
            log.append(lane.name)

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(transfer(Lane.LOW, 5))
        group.create_task(transfer(Lane.HIGH, 1))
    assert log.index("HIGH") <= 1
    assert log.count("LOW") == 50


async def test_an_unlimited_nic_grants_all_at_once_while_the_high_lane_is_not_in_use() -> None:
    for nic in (PacedNic("nic"), PacedNic("nic", lanes=False)):
        for _ in range(20):
            await nic.send(Lane.LOW, nic.quantum_bytes)
        assert use_of(nic, "low").waits[0] == 20


async def test_an_unlimited_nic_never_makes_a_single_stream_wait() -> None:
    nic = PacedNic("nic")
    for _ in range(100):
        await nic.send(Lane.HIGH, 0)
        await nic.send(Lane.LOW, nic.quantum_bytes)
        await nic.receive(Lane.LOW, nic.quantum_bytes)
        await asyncio.sleep(0)
    for direction in ("tx", "rx"):
        assert use_of(nic, "low", direction).waits[0] == 100


async def test_queues_waits_and_shares_are_to_be_seen() -> None:
    nic = PacedNic("nic", 100e6, quantum_bytes=CHUNK)
    async with saturated(nic, *Lane, senders=3):
        await until(lambda: nic.moved()[Lane.LOW, "tx"] >= 3 * CHUNK)
        # One that was granted just now has yet to ask again.
        await until(lambda: use_of(nic, "low").waiting == 3)
        high, low = use_of(nic, "high"), use_of(nic, "low")
        assert low.waiting_bytes == 3 * CHUNK
    for use in (high, low):
        assert use.nic == "nic"
        assert len(use.waits) == len(WAIT_BOUNDS_S) + 1
        assert sum(use.waits) * CHUNK == use.nbytes
        assert use.wait_s > 0
    assert high.share + low.share == pytest.approx(1)
    assert high.share > 0.9
    contended = high.contended_bytes + low.contended_bytes
    assert high.contended_bytes / contended == pytest.approx(0.99, abs=0.01)
    assert use_of(nic, "low", "rx").nbytes == 0
    assert use_of(nic, "high").waiting == 0
    nic.close()


async def test_without_lanes_the_one_queue_is_shown_and_bytes_by_lane() -> None:
    nic = PacedNic("nic", 1e6, quantum_bytes=CHUNK, lanes=False)
    async with saturated(nic, *Lane, senders=2):
        await until(lambda: use_of(nic, "high").waiting > 0)
        assert use_of(nic, "low").waiting == 0
        await until(lambda: nic.moved()[Lane.LOW, "tx"] > 0)
    nic.close()
