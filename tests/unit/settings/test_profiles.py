from dataclasses import replace

import pytest

from dualpath.memory.admission import check_capacity
from dualpath.model.spec import load_spec
from dualpath.settings import Settings
from dualpath.settings.hardware import HardwareProfile
from dualpath.settings.profiles import PROFILES, profile_named

CONTEXT = 4200
"""Emulated tokens: the longest of the paper's traces."""
EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=str)


@EVERY
@pytest.mark.parametrize("mode", ["basic", "dualpath"])
def test_a_cluster_of_each_profile_holds_the_longest_context(
    profile: HardwareProfile, mode: str
) -> None:
    settings = Settings(**profile.settings(CONTEXT), mode=mode)
    geometry = load_spec(settings).geometry
    assert check_capacity(settings, geometry, CONTEXT) == []
    assert geometry.token_bytes == profile.token_bytes


@EVERY
def test_the_scale_changes_units_only(profile: HardwareProfile) -> None:
    """Time to read a context : time to compute a turn : time of its decoding, on a node and its share of agents."""

    def ratios(p: HardwareProfile) -> tuple[float, float]:
        context, appended = 32_768 / p.scale.tokens_each, 512 / p.scale.tokens_each
        read_s = context * p.token_bytes / p.snic_bytes_per_s
        compute_s = appended * p.token_s + appended * context * p.attention_s
        decode_s = 160 / p.scale.tokens_each * p.decode_step_s * p.scale.share
        return read_s / compute_s, read_s / decode_s

    scale = profile.scale
    other = replace(
        profile,
        scale=replace(
            scale,
            share=2 * scale.share,
            bytes_each=scale.bytes_each / 4,
            tokens_each=scale.tokens_each // 2,
            time=scale.time * 3,
        ),
    )
    assert ratios(other) == pytest.approx(ratios(profile), rel=0.02)


def test_the_scale_keeps_the_real_times() -> None:
    """One turn of DS 27B reads 0.77 GB at 50 GB/s: 15.5 ms, on 1/32 of a node 32 times that."""
    profile = profile_named("hopper-ds27b")
    context = 32_721 / profile.scale.tokens_each
    read_s = context * profile.token_bytes / profile.snic_bytes_per_s
    real_s = read_s / profile.scale.time / profile.scale.share
    assert real_s == pytest.approx(32_721 * 23_640 / 50e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "context", "low", "high"),
    [
        ("hopper-ds660b", 16_384, 12, 27),
        ("hopper-qwen32b", 16_384, 100, 280),
        ("hopper-qwen32b", 65_536, 100, 280),
    ],
)
def test_cache_and_compute_stand_as_published(
    name: str, context: int, low: float, high: float
) -> None:
    """GB of KV to read per PFLOP to compute, 429 tokens appended."""
    model = profile_named(name).model
    flop = 429 * (model.token_flop.value + model.pair_flop.value * context)
    assert low < context * model.kv_bytes.value / 1e9 / (flop / 1e15) < high


@EVERY
def test_every_figure_has_a_source(profile: HardwareProfile) -> None:
    figures = profile.figures()
    assert len(figures) == 11
    assert all(value > 0 and len(source) > 10 for _, value, source in figures)


def test_an_unknown_profile_is_told_which_there_are() -> None:
    with pytest.raises(
        ValueError, match=r"no profile 'gpu'; choose one of hopper-ds660b, .*laptop"
    ):
        profile_named("gpu")
