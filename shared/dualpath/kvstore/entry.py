"""What a shard writes down about a slot: 64 bytes in its extent's table. Pure.

Little-endian: key, checksum of the block, sequence number, time of the last known touch, depth, state, three
bytes of zeros, and a digest of all these and of the slot's number: an entry that is torn, or lies in another
slot's place, is none. A slot without an entry holds nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_FIELDS = struct.Struct("<16s16sQdIB3x")
ENTRY_BYTES = _FIELDS.size + 8
NO_ENTRY = bytes(ENTRY_BYTES)
_ROW = np.dtype(
    [
        ("key", "V16"),
        ("checksum", "V16"),
        ("seq", "<u8"),
        ("touched", "<f8"),
        ("depth", "<u4"),
        ("state", "u1"),
        ("zeros", "V3"),
        ("digest", "<u8"),
    ]
)
_FORMAT = 0xD0A1_0002 << 32
"""Part of every digest: another format's entries are none of this one."""
_WORD = (1 << 64) - 1
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F)
"""Of xxHash."""


class State(IntEnum):
    STORED = 1
    ASIDE = 2
    """Found to be damaged, and kept for whoever looks into it."""


class Entry(NamedTuple):
    key: bytes
    checksum: bytes
    seq: int
    """Counts all writes of a shard: what is not above the mark of its last sync is whole on the disk."""
    touched: float
    """Seconds since the epoch."""
    depth: int
    """Full blocks before this one in its chain."""
    state: State = State.STORED


def encode_entry(slot: int, entry: Entry) -> bytes:
    fields = _FIELDS.pack(*entry)
    digest = _FORMAT ^ slot
    for (word,) in struct.iter_unpack("<Q", fields):
        digest = _mixed(digest ^ word, _PRIMES[0])
    return fields + _mixed(digest, _PRIMES[1]).to_bytes(8, "little")


def _mixed(value: int, prime: int) -> int:
    value = value * prime & _WORD
    return value ^ value >> 29


def _digests(words: NDArray[np.uint64], slots: NDArray[np.int64]) -> NDArray[np.uint64]:
    """What `encode_entry` gives for rows of words, all at once."""
    digests = slots.astype(np.uint64) ^ np.uint64(_FORMAT)
    for prime, column in [(_PRIMES[0], column) for column in words.T] + [(_PRIMES[1], None)]:
        if column is not None:
            digests ^= column
        digests *= np.uint64(prime)
        digests ^= digests >> np.uint64(29)
    return digests


class Table:
    """The slots of an extent that have an entry, in columns: a million of them are read in a second."""

    def __init__(self, first_slot: int, raw: bytes) -> None:
        """`raw` begins with the entry of `first_slot` and ends with a whole one."""
        every = np.frombuffer(raw, _ROW)
        used = np.flatnonzero((every["state"] > 0) & (every["state"] <= max(State)))
        words = np.frombuffer(raw, "<u8").reshape(-1, ENTRY_BYTES // 8)
        right = _digests(words[used, :-1], used + first_slot) == every["digest"][used]
        used = used[right]
        self.rows = every[used]
        self.slots = used + first_slot

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, Entry]:
        row = self.rows[index]
        entry = Entry(
            row["key"].tobytes(),
            row["checksum"].tobytes(),
            int(row["seq"]),
            float(row["touched"]),
            int(row["depth"]),
            State(int(row["state"])),
        )
        return int(self.slots[index]), entry

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        names = ("key", "checksum", "seq", "touched", "depth", "state")
        columns = [self.rows[name].tolist() for name in names]
        for slot, key, checksum, seq, touched, depth, state in zip(
            self.slots.tolist(), *columns, strict=True
        ):
            yield slot, Entry(key, checksum, seq, touched, depth, State(state))
