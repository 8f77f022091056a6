import pytest

from dualpath.loadgen.experiments.bounds import bounds_of
from dualpath.loadgen.experiments.systems import (
    DUALPATH,
    ORACLE,
    PE_ONLY,
    modes,
    shape,
    shape_name,
)
from dualpath.loadgen.experiments.workload import Totals
from dualpath.settings.profiles import profile_named

LAPTOP = profile_named("laptop")
TOTALS = Totals(
    turns=10,
    hit_tokens=100_000,
    miss_tokens=1000,
    pairs=2_000_000,
    generate_tokens=100,
    longest_steps=10,
)


def test_storage_is_bound_by_the_nics_that_may_read() -> None:
    alone = bounds_of(TOTALS, LAPTOP, PE_ONLY, 2, 1)
    both = bounds_of(TOTALS, LAPTOP, DUALPATH, 2, 1)
    free = bounds_of(TOTALS, LAPTOP, ORACLE, 2, 1)
    assert alone.storage_s == pytest.approx(100_000 * LAPTOP.token_bytes / 32e6 / 2)
    assert alone.storage_s / both.storage_s == pytest.approx(3 / 2)
    assert free.storage_s == 0
    assert (alone.by, free.by) == ("storage", "compute")
    assert alone.jct_s == alone.storage_s


def test_compute_is_shared_by_prefill_nodes_and_decoding_by_nobody() -> None:
    one, two = (bounds_of(TOTALS, LAPTOP, ORACLE, p, 4) for p in (1, 2))
    assert one.compute_s == pytest.approx(2 * two.compute_s)
    assert one.compute_s == pytest.approx(1000 * LAPTOP.token_s + 2_000_000 * LAPTOP.attention_s)
    assert one.decode_s == two.decode_s == pytest.approx(10 * LAPTOP.decode_step_s)


def test_shapes_are_read_and_written() -> None:
    assert shape("2p1D") == (2, 1)
    assert shape_name(2, 1) == "2P1D"
    for text in ("", "P1D", "2P", "0P1D", "2P1D3", "-1P1D", "65P1D"):
        with pytest.raises(ValueError, match=r"no shape|no node|more than 64 nodes"):
            shape(text)


def test_systems_are_found_by_name() -> None:
    assert [system.name for system in modes("basic, oracle")] == ["basic", "oracle"]
    with pytest.raises(ValueError, match=r"no system 'fast'; choose from basic, pe-only"):
        modes("basic,fast")
