"""How a read is timed from the log of a prefill node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from benchmarks.read_rate import Shape, timed
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)


def line(event: str, at_s: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "ts": (START + timedelta(seconds=at_s)).isoformat(), **fields}


def forward(at_s: float, seconds: float, arrived: dict[int, float]) -> dict[str, Any]:
    marks = [["arrived", layer, at] for layer, at in arrived.items()]
    return line("forward", at_s, seconds=seconds, marks=[["compute", 0, 9.0], *marks])


def test_a_read_lasts_from_the_begin_of_loading_to_the_last_layer_on_the_device() -> None:
    loaded_s, device_s = timed(
        [(line("loaded", 10.0), 4.0)], [forward(13.0, 3.0, {0: 0.5, 1: 1.5})]
    )
    assert loaded_s == pytest.approx(4.0)
    assert device_s == pytest.approx(5.5)  # Begun at 6; the forward at 10, the last layer at 11.5.


def test_a_group_lasts_from_its_first_begin_to_its_last_layer() -> None:
    loaded_s, device_s = timed(
        [(line("loaded", 10.0), 4.0), (line("loaded", 12.0), 1.0)],
        [forward(13.0, 3.0, {0: 0.5}), forward(20.0, 4.0, {0: 1.0, 1: 0.5})],
    )
    assert loaded_s == pytest.approx(6.0)
    assert device_s == pytest.approx(11.0)


@given(st.integers(1, 64), st.integers(8, 4096), st.integers(1, 64), st.integers(1, 8))
def test_buffers_hold_all_requests_of_a_group(
    layers: int, row_bytes: int, blocks: int, concurrent: int
) -> None:
    shape = Shape(layers, row_bytes, blocks * 64, 3)
    settings = shape.settings("decode", concurrent)
    assert settings["prefill_buffer"] >= concurrent * shape.cached_bytes
    prompt = shape.cached_bytes + shape.cached_bytes // blocks
    assert settings["decode_buffer"] >= concurrent * prompt
