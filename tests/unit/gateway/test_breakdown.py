"""Parts of a whole are never more, and never less, than the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.gateway.breakdown import SOURCES, TTFT_PARTS, token_sources, ttft_parts
from dualpath.wire.types import AttemptStats

SECONDS = st.floats(0, 100)
ATTEMPT = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("wait_decode", "wait_slots", "wait_prefill", "acquire", "loading", "first", "decode"),
        SECONDS,
    ),
)
OWN = st.fixed_dictionaries({}, optional=dict.fromkeys(("accept", "match", "submit"), SECONDS))


@given(OWN, ATTEMPT, SECONDS)
def test_parts_sum_up_to_the_whole(
    own: dict[str, float], attempt: dict[str, float], more: float
) -> None:
    known = sum(ttft_parts(own, attempt, 0.0).values())
    parts = ttft_parts(own, attempt, known + more)
    assert tuple(parts) == TTFT_PARTS
    assert sum(parts.values()) == pytest.approx(known + more)
    assert all(seconds >= 0 for seconds in parts.values())


def test_room_in_a_buffer_is_no_reading() -> None:
    parts = ttft_parts({}, {"wait_slots": 1.0, "acquire": 2.0, "loading": 5.0}, 10.0)
    assert (parts["allocation"], parts["reading"]) == (3.0, 3.0)


COUNT = st.integers(0, 10_000)


@given(COUNT, COUNT, COUNT, COUNT, COUNT)
def test_sources_sum_up_to_the_prompt(
    prefill: int, decode: int, prefill_hot: int, decode_hot: int, prompt: int
) -> None:
    stats = AttemptStats(
        prefill_tokens=prefill,
        decode_tokens=decode,
        prefill_hot_tokens=prefill_hot,
        decode_hot_tokens=decode_hot,
    )
    sources = token_sources(stats, prompt)
    assert tuple(sources) == SOURCES
    assert sum(sources.values()) == prompt
    assert all(count >= 0 for count in sources.values())


def test_a_request_that_came_to_no_token_has_no_sources() -> None:
    assert sum(token_sources(None, 100).values()) == 0
