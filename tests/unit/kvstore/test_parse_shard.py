from __future__ import annotations

import pytest

from dualpath.kvstore.shards import parse_shard
from dualpath.wire.types import Address


def test_an_address_names_no_life_of_the_shard() -> None:
    assert parse_shard("s-0=127.0.0.1:7100") == Address("s-0", "", "127.0.0.1", 7100)
    assert parse_shard("s-0=[::1]:7100") == Address("s-0", "", "::1", 7100)


@pytest.mark.parametrize(
    "text",
    ["", "s-0", "s-0=host", "=host:1", "s-0=:1", "s-0=host:", "s-0=host:x", "s-0=host:65536"],
)
def test_anything_else_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example"):
        parse_shard(text)
