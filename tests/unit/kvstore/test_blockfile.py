from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.kvstore.blockfile import (
    HEADER_BYTES,
    CorruptBlock,
    check_header,
    encode_header,
    publish,
    read_block,
    write_block,
)
from dualpath.kvstore.checksum import block_checksum

KEY = bytes(range(16))
BLOCK = bytes(range(256)) * 20 + b"odd"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store(tmp_path, KEY, BLOCK)
    return tmp_path / "ab" / "block"


def store(directory: Path, key: bytes, block: bytes, *, fsync: bool = False) -> None:
    temporary = directory / "temporary"
    write_block(temporary, key, block_checksum(key, block), memoryview(block), fsync=fsync)
    publish(temporary, directory / "ab" / "block", fsync=fsync)


@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_written_is_read(tmp_path: Path, fsync: bool) -> None:
    store(tmp_path, KEY, BLOCK, fsync=fsync)
    into = bytearray(len(BLOCK))
    assert read_block(tmp_path / "ab" / "block", KEY, memoryview(into)) == block_checksum(
        KEY, BLOCK
    )
    assert into == BLOCK
    assert [path.name for path in tmp_path.iterdir()] == ["ab"]


@pytest.mark.parametrize("at", [0, 8, 20, 40, 60, HEADER_BYTES, HEADER_BYTES + 3000, -1])
def test_a_flipped_bit_anywhere_is_corrupt(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(CorruptBlock):
        read_block(path, KEY, memoryview(bytearray(len(BLOCK))))


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, HEADER_BYTES + len(BLOCK) - 1])
def test_a_truncated_file_is_corrupt(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptBlock, match="bytes, not"):
        read_block(path, KEY, memoryview(bytearray(len(BLOCK))))


def test_another_blocks_file_is_corrupt(tmp_path: Path, path: Path) -> None:
    other = b"o" * 16
    store(tmp_path, other, BLOCK)
    with pytest.raises(CorruptBlock, match=other.hex()):
        read_block(path, KEY, memoryview(bytearray(len(BLOCK))))


def test_a_header_that_was_forged_over_anothers_bytes_is_corrupt(path: Path) -> None:
    other = b"o" * 16
    content = path.read_bytes()
    header = encode_header(other, len(BLOCK), block_checksum(KEY, BLOCK))
    path.write_bytes(header + content[HEADER_BYTES:])
    with pytest.raises(CorruptBlock, match="checksum"):
        read_block(path, other, memoryview(bytearray(len(BLOCK))))


def test_no_file_is_not_corrupt(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_block(tmp_path / "none", KEY, memoryview(bytearray(8)))


@given(
    key=st.binary(min_size=16, max_size=16),
    size=st.integers(0, 2**40),
    checksum=st.binary(min_size=16, max_size=16),
)
def test_headers_round_trip(key: bytes, size: int, checksum: bytes) -> None:
    header = encode_header(key, size, checksum)
    assert len(header) == HEADER_BYTES
    assert check_header(header, key, size) == checksum


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_garbage_is_no_header(garbage: bytes) -> None:
    with pytest.raises(ValueError):
        check_header(garbage, KEY, len(BLOCK))
