from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.placement import Placement

keys = st.binary(min_size=16, max_size=16)
shard_sets = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


@given(shards=shard_sets, new=st.text(min_size=9, max_size=9), key=keys)
def test_a_new_shard_takes_keys_only_to_itself(shards: set[str], new: str, key: bytes) -> None:
    before = Placement(sorted(shards)).holder(key)
    after = Placement([*shards, new]).holder(key)
    assert after in (before, new)


@given(shards=shard_sets, key=keys)
def test_the_order_in_which_shards_are_named_does_not_matter(shards: set[str], key: bytes) -> None:
    assert Placement(sorted(shards)).holder(key) == Placement(sorted(shards)[::-1]).holder(key)


@given(shards=shard_sets, batch=st.lists(keys, max_size=30))
def test_grouping_puts_every_key_with_its_holder_in_order(
    shards: set[str], batch: list[bytes]
) -> None:
    placement = Placement(sorted(shards))
    groups = placement.by_holder(batch)
    assert sorted(i for indices in groups.values() for i in indices) == list(range(len(batch)))
    for shard, indices in groups.items():
        assert indices == sorted(indices)
        assert all(placement.holder(batch[index]) == shard for index in indices)


def test_shares_are_about_equal_and_a_new_shard_moves_only_its_share() -> None:
    sample = [number.to_bytes(16, "big") for number in range(4000)]
    four = Placement(["a", "b", "c", "d"])
    five = Placement(["a", "b", "c", "d", "e"])
    shares = [len(indices) for indices in four.by_holder(sample).values()]
    assert max(shares) < 1.25 * min(shares)
    moved = sum(four.holder(key) != five.holder(key) for key in sample)
    assert 600 < moved < 1000


def test_placement_is_the_same_in_every_process_and_release() -> None:
    placement = Placement(["storage-0", "storage-1", "storage-2"])
    golden = [placement.holder(bytes([number]) * 16)[-1] for number in range(12)]
    assert "".join(golden) == "111202121002"


@pytest.mark.parametrize("shards", [[], ["a", "b", "a"]])
def test_no_shards_or_one_twice_is_refused(shards: list[str]) -> None:
    with pytest.raises(ValueError, match="each named once"):
        Placement(shards)
