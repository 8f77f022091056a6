from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.settings import parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "value"),
    [("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("2GB", 2 * 10**9), ("7", 7), (9, 9)],
)
def test_sizes(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("50MB/s", 50 * 10**6), ("2GiB/s", 2 << 30), ("400Gbps", 50 * 10**9), ("8kbps", 1000)],
)
def test_rates(text: str, value: int) -> None:
    assert parse_rate(text) == value


@pytest.mark.parametrize(
    "text", ["", "MB", "9" * 400, "1 2", "-1MB", "1XB", "50MB/s", 1.5e9, True, [1]]
)
def test_what_is_no_size_is_told_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["fast", "400Gbps/s", "1/s/s", 2.5, False])
def test_what_is_no_rate_is_told_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_rate(text)


@given(st.text())
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    try:
        assert parse_bytes(text) >= 0
    except ValueError:
        return
