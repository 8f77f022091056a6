import pytest

from dualpath.loadgen.experiments import gates
from dualpath.loadgen.experiments.bounds import Bounds
from dualpath.loadgen.experiments.systems import BALANCE, DUALPATH, ORACLE, PE_ONLY
from dualpath.loadgen.report.results import NicSeries

STORAGE_BOUND = Bounds(storage_s=10, compute_s=1, decode_s=1, memory_s=1)


def snic(node: str, *rates: float, direction: str = "rx") -> NicSeries:
    times = tuple(float(k + 1) for k in range(len(rates)))
    return NicSeries(node, f"{node}.snic", direction, 100.0, times, rates)


SERIES = (
    snic("prefill-0", 100, 100, 80, 0),
    snic("decode-0", 0, 50, 60, 0),
    snic("prefill-0", 9, 9, 9, 9, direction="tx"),
)


def test_use_counts_what_lies_between_the_times() -> None:
    busy = gates.busy(SERIES, 1.0, 3.0)
    assert busy == pytest.approx({"prefill": 0.9, "decode": 0.55, "all": 0.725, "busiest": 0.9})
    assert gates.busy(SERIES, 0.5, 1.5)["decode"] == pytest.approx(0.25)


def test_balance_is_by_bytes() -> None:
    """Intervals of (100, 50) and (80, 60): largest 180, mean 145."""
    assert gates.balance(SERIES, 1.5, 3.0) == pytest.approx(180 / 145)
    assert gates.balance(SERIES, 3.5, 4.0) == 0
    assert gates.balance((), 0, 1) == 0


def test_the_bottleneck_must_have_been_busy() -> None:
    assert gates.bottleneck(PE_ONLY, STORAGE_BOUND, {"prefill": 0.95, "all": 0.5}).ok
    assert not gates.bottleneck(DUALPATH, STORAGE_BOUND, {"prefill": 0.95, "all": 0.5}).ok
    assert gates.bottleneck(ORACLE, Bounds(0, 5, 1, 1), {}).ok


def test_where_a_system_does_not_balance_the_busiest_nic_is_asked() -> None:
    busy = {"prefill": 0.7, "all": 0.8, "busiest": 0.95}
    round_robin = BALANCE[0]
    assert gates.bottleneck(round_robin, STORAGE_BOUND, busy).ok
    assert not gates.bottleneck(DUALPATH, STORAGE_BOUND, busy).ok
    assert not gates.bottleneck(round_robin, STORAGE_BOUND, {**busy, "busiest": 0.85}).ok


def test_where_two_bounds_are_nearly_alike_neither_must_have_been_busy() -> None:
    assert gates.bottleneck(PE_ONLY, Bounds(9, 7, 1, 1), {"prefill": 0.7}).ok
    assert not gates.bottleneck(PE_ONLY, Bounds(9, 5, 1, 1), {"prefill": 0.7}).ok


def test_without_bounds_storage_nics_are_meant_to_be_the_bottleneck() -> None:
    assert gates.bottleneck(PE_ONLY, None, {"prefill": 0.95, "all": 0.5}).ok
    assert not gates.bottleneck(DUALPATH, None, {"prefill": 0.95, "all": 0.5}).ok


def test_answers_must_be_all_there_and_right() -> None:
    assert gates.complete(10, 10, {}).ok
    assert not gates.complete(9, 10, {}).ok
    failed = gates.complete(9, 10, {"length": 1})
    assert not failed.ok
    assert "1 length" in failed.said
    assert gates.right(4, 0).ok
    assert not gates.right(4, 1).ok
    assert not gates.right(0, 0).ok, "nothing was checked"


def test_cpu_client_and_hits_have_limits() -> None:
    assert gates.cpu(0.5).ok
    assert not gates.cpu(0.85).ok
    assert not gates.client(0.007, ttft_s=0.5).ok
    assert gates.client(0.007, ttft_s=0.8).ok
    assert gates.client(0.005, ttft_s=0.0).ok
    assert gates.hits(99, 100).ok
    assert not gates.hits(90, 100).ok
