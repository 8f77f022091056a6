"""Points that are measured, and what comes of them on an emulated engine."""

from pathlib import Path

import pytest

from dualpath.calibration.engine import (
    decode_batches,
    forward_points,
    measure_decode,
    measure_forwards,
    quick_points,
)
from dualpath.calibration.files import save_profile
from dualpath.calibration.fit import Sample
from dualpath.calibration.quick import profile_of, quick_profile
from dualpath.model.api import PrefillRow
from dualpath.model.spec import load_spec
from dualpath.model.synthetic import SyntheticBackend, prefill_s
from dualpath.policy.attention import AttentionFit
from dualpath.settings import Settings


@pytest.mark.parametrize(("chunk", "context"), [(2048, 4096), (1, 2), (4096, 64), (8, 100_000)])
def test_all_points_fit_the_context_and_the_chunk(chunk: int, context: int) -> None:
    for points in (forward_points(chunk, context), quick_points(chunk, context)):
        assert points
        assert points[0][0] == 0
        for cached, new in points:
            assert cached >= 0
            assert 1 <= new <= chunk
            assert cached + new < context


def test_batches_double() -> None:
    assert list(decode_batches(20)) == [1, 2, 4, 8, 16]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    # Forwards take long enough to be told from what this machine does beside them.
    synthetic = {"max_context": 512, "token_s": 2e-5}
    return Settings(
        model="synthetic", home=tmp_path, chunk_tokens=128, synthetic=synthetic,
        snic_bandwidth=10_000_000, prefill_hbm=1 << 22, decode_hbm=1 << 22,
    )  # fmt: skip


async def test_a_budget_of_nothing_still_measures_the_first_point(settings: Settings) -> None:
    backend = SyntheticBackend(load_spec(settings), settings)
    told: list[Sample] = []
    try:
        samples = await measure_forwards(
            backend,
            [(0, 16), (64, 16), (0, 128)],
            sample_s=0.0,
            budget_s=0.0,
            on_sample=told.append,
        )
    finally:
        backend.close()
    assert [(s.cached, s.new) for s in samples] == [(0, 16)]
    assert samples == told
    # All that was allocated was freed.
    assert backend.allocate(1 << 22)


async def test_decode_steps_are_measured_by_batch(settings: Settings) -> None:
    backend = SyntheticBackend(load_spec(settings), settings)
    try:
        steps = await measure_decode(backend, [1, 2], context=64)
    finally:
        backend.close()
    assert [batch for batch, _ in steps] == [1, 2]
    assert all(seconds > 0 for _, seconds in steps)


async def test_a_node_without_a_profile_gets_a_quick_one(settings: Settings) -> None:
    spec = load_spec(settings)
    backend = SyntheticBackend(spec, settings)
    try:
        prefill = await profile_of(settings, spec, backend, "prefill")
        decode = await quick_profile(settings, spec, backend, "decode")
    finally:
        backend.close()
    assert prefill.how == "quick"
    assert prefill.forward is not None
    # Largest chunks are fastest by the token: the fixed time is spread over more of them.
    whole = prefill.forward.seconds([(0, settings.chunk_tokens)])
    assert prefill.compute_tokens_per_s == settings.chunk_tokens / whole
    assert prefill.alpha_tokens == int(3 * 10_000_000 / spec.geometry.token_bytes)
    assert decode.forward is None
    assert decode.beta_tokens is None


async def test_an_emulated_engine_is_as_fast_as_it_says_and_needs_no_measurement(
    settings: Settings,
) -> None:
    spec = load_spec(settings)
    backend = SyntheticBackend(spec, settings)
    backend.close()  # Who measured it now would fail.
    profile = await quick_profile(settings, spec, backend, "prefill")
    assert profile.forward is not None
    rows = [PrefillRow([1] * 40, 128, None), PrefillRow([1] * 3, 64, None)]
    batch = [(row.prefix_tokens, len(row.token_ids)) for row in rows]
    assert profile.forward.seconds(batch) == pytest.approx(prefill_s(settings.synthetic, rows))
    # The quota bounds what grows with pairs.
    assert profile.attention == AttentionFit(0.0, 0.0, settings.synthetic.attention_s)


async def test_an_engine_that_emulates_no_time_is_measured(settings: Settings) -> None:
    none = {"forward_s": 0.0, "token_s": 0.0, "attention_s": 0.0}
    profile = settings.synthetic.model_copy(update=none)
    settings = settings.model_copy(update={"synthetic": profile})
    spec = load_spec(settings)
    backend = SyntheticBackend(spec, settings)
    try:
        found = await quick_profile(settings, spec, backend, "prefill")
    finally:
        backend.close()
    assert found.compute_tokens_per_s > 0
    assert found.forward is not None
    assert found.forward.seconds([(0, 128)]) > 0


async def test_a_profile_that_was_measured_in_full_is_preferred(settings: Settings) -> None:
    spec = load_spec(settings)
    backend = SyntheticBackend(spec, settings)
    try:
        quick = await quick_profile(settings, spec, backend, "decode")
        save_profile(settings.home, quick)
        assert await profile_of(settings, spec, backend, "prefill") == quick
    finally:
        backend.close()
