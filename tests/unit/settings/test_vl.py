from __future__ import annotations

import pytest

from dualpath.settings import load_settings
from dualpath.settings.vl import VlArbitration, parse_table


def test_tables_are_read_as_subnet_managers_write_them() -> None:
    assert parse_table("0:192, 1:0,14:255") == ((0, 192), (1, 0), (14, 255))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "VL:WEIGHT"),
        ("0", "VL:WEIGHT"),
        ("0:-1", "VL:WEIGHT"),
        ("15:1", "15:1 goes beyond"),
        ("0:256", "0:256 goes beyond"),
        (",".join(["0:1"] * 65), "at most 64"),
    ],
)
def test_a_wrong_table_is_said_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_table(text)
    with pytest.raises(ValueError, match=rf"vl_tables.low: .*{sentence}"):
        load_settings(vl_tables={"low": text})


def test_lanes_that_could_never_send_are_refused() -> None:
    with pytest.raises(ValueError, match="VL 2 has no weight"):
        load_settings(vl_tables={"low": "0:192,2:0"})
    with pytest.raises(ValueError, match="different VLs"):
        load_settings(vl_tables={"vl_of_low_lane": 0})
    assert VlArbitration(vl_of_low_lane=3).low == VlArbitration().low
