"""A block's checksum: over its key and its bytes, so that a block served under another's name is caught too. Pure."""

from __future__ import annotations

import xxhash

CHECKSUM_BYTES = 16


def block_checksum(key: bytes, block: bytes | bytearray | memoryview) -> bytes:
    """xxh3_128 of `key` and then `block`; copies nothing, and lets other threads run while it reads."""
    digest = xxhash.xxh3_128(key)
    digest.update(block)
    return digest.digest()
