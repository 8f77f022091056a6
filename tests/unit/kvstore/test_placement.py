from __future__ import annotations

from collections import Counter

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


@given(shards=shard_sets, batch=st.lists(keys, max_size=30), replicas=st.integers(1, 8))
def test_copies_are_on_shards_of_their_own_and_the_first_is_where_it_was_without_them(
    shards: set[str], batch: list[bytes], replicas: int
) -> None:
    placement = Placement(sorted(shards))
    for key, names in zip(batch, placement.holders(batch, replicas), strict=True):
        assert len(set(names)) == len(names) == min(replicas, len(shards))
        assert names[0] == placement.holder(key)


@given(shards=shard_sets, new=st.text(min_size=9, max_size=9), key=keys)
def test_a_shard_that_is_lost_leaves_the_other_copies_where_they_are(
    shards: set[str], new: str, key: bytes
) -> None:
    (before,) = Placement([*shards, new]).holders([key], 2)
    (after,) = Placement(sorted(shards)).holders([key], 2)
    assert set(before) - {new} <= set(after)


def test_shares_are_about_equal_and_a_new_shard_moves_only_its_share() -> None:
    sample = [number.to_bytes(16, "big") for number in range(4000)]
    four = Placement(["a", "b", "c", "d"])
    five = Placement(["a", "b", "c", "d", "e"])
    for replicas in (1, 2):
        shares = Counter(name for names in four.holders(sample, replicas) for name in names)
        assert max(shares.values()) < 1.25 * min(shares.values())
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
