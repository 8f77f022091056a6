from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum

keys = st.binary(min_size=16, max_size=16)


def test_checksums_are_the_same_in_every_process_and_release() -> None:
    assert block_checksum(bytes(16), b"block").hex() == "29f2bf3f888f869ab942ef4823ceff3b"


@given(key=keys, block=st.binary(min_size=1, max_size=200), data=st.data())
def test_any_flipped_bit_shows(key: bytes, block: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(block) - 1))
    flipped = bytearray(block)
    flipped[bit // 8] ^= 1 << bit % 8
    right = block_checksum(key, block)
    assert len(right) == CHECKSUM_BYTES
    assert block_checksum(key, flipped) != right


@given(key=keys, other=keys, block=st.binary(max_size=200))
def test_a_block_under_another_key_shows(key: bytes, other: bytes, block: bytes) -> None:
    assert (block_checksum(key, block) == block_checksum(other, block)) == (key == other)


def test_views_and_bytes_give_the_same() -> None:
    block = bytes(range(256)) * 16
    assert block_checksum(b"k" * 16, memoryview(bytearray(block))) == block_checksum(
        b"k" * 16, block
    )
