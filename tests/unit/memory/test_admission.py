from __future__ import annotations

import re

import pytest

from dualpath.blocks import KVGeometry, KVPart
from dualpath.memory.admission import (
    check_capacity,
    ring_bytes,
    ring_depth,
    slot_stride,
    slots_in,
)
from dualpath.settings import Settings

GEOMETRY = KVGeometry(64, ((KVPart("k", 128), KVPart("v", 128)),) * 8)
BLOCK = 64 * 256 * 8


def test_default_settings_hold_the_synthetic_models_longest_request() -> None:
    assert check_capacity(Settings(model="synthetic"), GEOMETRY, 32_768) == []


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("prefill_buffer", 15 * BLOCK),
        ("decode_buffer", (16 + 4) * BLOCK),
        ("prefill_hbm", 3 * 1024 * 256),
        ("decode_hbm", 17 * BLOCK),
    ],
)
def test_each_pool_is_checked_and_its_advice_is_enough(name: str, least: int) -> None:
    def problems(size: int | str) -> list[str]:
        settings = Settings.model_validate({"write_back_blocks": 4, name: size})
        return check_capacity(settings, GEOMETRY, 1025)

    assert problems(least) == []
    [sentence] = problems(least - 1)
    advice = re.search(rf"raise {name} to (\w+)", sentence)
    assert advice is not None
    assert problems(advice[1]) == []


def test_without_layerwise_prefill_all_layers_have_to_fit() -> None:
    on, off = Settings(), Settings(mode="basic")
    assert (ring_depth(GEOMETRY, on), ring_depth(GEOMETRY, off)) == (3, 8)
    small = Settings(mode="basic", prefill_hbm=8 * 1024 * 256 - 1)
    assert "layerwise is off" in check_capacity(small, GEOMETRY, 1025)[0]


def test_a_ring_that_is_not_deep_enough_for_all_layers_has_places_for_the_widest() -> None:
    uneven = KVGeometry(64, ((KVPart("k", 8),), (KVPart("k", 24),), (KVPart("k", 8),)))
    assert [ring_bytes(uneven, 100, depth) for depth in (1, 2, 3)] == [2400, 4800, 4000]
    assert ring_depth(uneven, Settings(ring_layers=16)) == 3


def test_slots_begin_on_pages() -> None:
    assert [slot_stride(n) for n in (1, 4096, 4097)] == [4096, 4096, 8192]
    assert slots_in(3 * 8192 - 1, 4097) == 2
