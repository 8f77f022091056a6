"""A block as one file or object: its bytes, and behind them a trailer that says whose they are. Pure."""

from __future__ import annotations

import struct

from dualpath.blocks.keys import KEY_BYTES
from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum

_TRAILER = struct.Struct(f"<8sQI4x{KEY_BYTES}s{CHECKSUM_BYTES}s8x")
_MAGIC = b"DPBLOCK1"

TRAILER_BYTES = _TRAILER.size


def seal(key: bytes, block: bytes | memoryview, depth: int) -> bytes:
    """The trailer of a block that has `depth` full blocks before it."""
    return _TRAILER.pack(_MAGIC, len(block), depth, key, block_checksum(key, block))


def is_whole(
    key: bytes, block: bytes | memoryview, trailer: bytes | bytearray | memoryview
) -> bool:
    """Whether `block` is what was sealed under `key`: every byte of it, and no other block's."""
    if len(trailer) != TRAILER_BYTES:
        return False
    magic, block_bytes, _, name, checksum = _TRAILER.unpack(trailer)
    said: tuple[bytes, int, bytes] = (magic, block_bytes, name)
    if said != (_MAGIC, len(block), key):
        return False
    return bool(block_checksum(key, block) == checksum)
