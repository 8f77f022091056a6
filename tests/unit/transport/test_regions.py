from __future__ import annotations

from collections.abc import Sequence

from dualpath.transport.regions import Closed, Regions


class Empty:
    nbytes = 0

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return []

    def on_write(self, imm: int) -> None:
        pass


def test_a_key_opens_its_region_until_it_is_revoked() -> None:
    regions = Regions()
    first, second = Empty(), Empty()
    keys = [regions.register(first), regions.register(second)]
    assert [regions.find(key) for key in keys] == [first, second]
    regions.revoke(keys[0])
    regions.revoke(keys[0])
    assert regions.find(keys[0]) is Closed.REVOKED
    assert regions.find(keys[1]) is second
    assert len(regions) == 1


def test_a_key_that_was_never_issued_is_told_apart() -> None:
    regions = Regions()
    regions.revoke(5)
    assert regions.find(5) is Closed.NEVER_ISSUED


def test_keys_are_random_63_bit_numbers() -> None:
    regions = Regions()
    keys = {regions.register(Empty()) for _ in range(1000)}
    assert len(keys) == 1000
    assert all(0 < key < 1 << 63 for key in keys)
    assert max(keys) > 1 << 60


def test_only_the_latest_revoked_keys_are_remembered() -> None:
    regions = Regions(remembered_keys=10)
    keys = [regions.register(Empty()) for _ in range(15)]
    for key in keys:
        regions.revoke(key)
    assert [regions.find(key) for key in keys[:5]] == [Closed.NEVER_ISSUED] * 5
    assert [regions.find(key) for key in keys[5:]] == [Closed.REVOKED] * 10
