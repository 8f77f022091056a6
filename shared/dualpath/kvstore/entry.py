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
import xxhash

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
_FORMAT = 1 << 63
"""Part of every digest: another format's entries are none of this one."""


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
    return fields + xxhash.xxh3_64_intdigest(fields, _FORMAT | slot).to_bytes(8, "little")


class Table:
    """The slots of an extent that have an entry, in columns: a million of them are read in a second."""

    def __init__(self, first_slot: int, raw: bytes) -> None:
        """`raw` begins with the entry of `first_slot` and ends with a whole one."""
        every = np.frombuffer(raw, _ROW)
        used = np.flatnonzero((every["state"] > 0) & (every["state"] <= max(State)))
        view, size, digest_of = memoryview(raw), _FIELDS.size, xxhash.xxh3_64_intdigest
        right = [
            digest_of(view[at * ENTRY_BYTES : at * ENTRY_BYTES + size], _FORMAT | first_slot + at)
            == digest
            for at, digest in zip(used.tolist(), every["digest"][used].tolist(), strict=True)
        ]
        used = used[right]
        self.rows = every[used]
        self.slots = (used + first_slot).tolist()
        self.keys = [raw[at : at + 16] for at in (used * ENTRY_BYTES).tolist()]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[int, Entry]:
        row = self.rows[index]
        entry = Entry(
            self.keys[index],
            row["checksum"].tobytes(),
            int(row["seq"]),
            float(row["touched"]),
            int(row["depth"]),
            State(int(row["state"])),
        )
        return self.slots[index], entry

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return map(self.__getitem__, range(len(self)))
