"""Names of blocks: a chained 128-bit BLAKE2b digest, equal in every process and on every machine."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

KEY_BYTES = 16
_ROOT = b"dualpath.root.1"
_BLOCK = b"dualpath.blk.1"


def root_key(fingerprint: str, *, salt: str = "", extras: Sequence[tuple[str, str]] = ()) -> bytes:
    """The parent of every first block.

    `fingerprint` names model, dtype and layout; `salt` separates tenants; `extras` (name, value)
    hold what else changes KV, an adapter's id for example: their order does not matter.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=_ROOT)
    flat = [fingerprint, salt, *(text for pair in sorted(extras) for text in pair)]
    for text in flat:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def block_key(parent: bytes, token_ids: Iterable[int]) -> bytes:
    """The key of a full block whose predecessor is `parent`; ids are hashed as little-endian int32."""
    digest = hashlib.blake2b(parent, digest_size=KEY_BYTES, person=_BLOCK)
    digest.update(pack_tokens(token_ids))
    return digest.digest()


class BlockKeys:
    """Keys of one growing token sequence: feed tokens in any portions, read `keys`.

    `tail` holds the tokens after the last full block.
    """

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self.root = root
        self.block_tokens = block_tokens
        self.keys: list[bytes] = []
        self.tail: list[int] = []

    @classmethod
    def resume(
        cls, root: bytes, block_tokens: int, keys: list[bytes], tail: list[int]
    ) -> BlockKeys:
        """Continue a sequence of which only the full blocks' keys and the tail are known."""
        if len(tail) >= block_tokens:
            raise ValueError(f"a tail of {len(tail)} tokens holds a full block of {block_tokens}")
        sequence = cls(root, block_tokens)
        sequence.keys, sequence.tail = list(keys), list(tail)
        return sequence

    def copy(self) -> BlockKeys:
        """The same sequence, to be extended in another way."""
        return self.resume(self.root, self.block_tokens, self.keys, self.tail)

    @property
    def parent(self) -> bytes:
        """The key that the next block will be chained to."""
        return self.keys[-1] if self.keys else self.root

    def extend(self, token_ids: Iterable[int]) -> list[bytes]:
        """Append tokens; return the keys of the blocks that became full."""
        self.tail.extend(token_ids)
        size, done = self.block_tokens, 0
        fresh: list[bytes] = []
        while len(self.tail) - done >= size:
            fresh.append(block_key(self.parent, self.tail[done : done + size]))
            self.keys.append(fresh[-1])
            done += size
        if done:
            del self.tail[:done]
        return fresh


def pack_keys(keys: Iterable[bytes]) -> bytes:
    return b"".join(keys)


def unpack_keys(packed: bytes) -> list[bytes]:
    """Inverse of `pack_keys`; raises ValueError where the length is no multiple of KEY_BYTES."""
    if len(packed) % KEY_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of {KEY_BYTES}-byte keys")
    return [packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)]


def pack_tokens(token_ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32; raises OverflowError for an id outside int32."""
    packed = array("i", token_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """Inverse of `pack_tokens`; raises ValueError where the length is no multiple of 4."""
    tokens = array("i")
    tokens.frombytes(packed)
    if byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
