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

import xxhash

_FIELDS = struct.Struct("<16s16sQdIB3x")
_ENTRY = struct.Struct("<16s16sQdIB3xQ")
ENTRY_BYTES = _ENTRY.size
NO_ENTRY = bytes(ENTRY_BYTES)
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


def decode_table(first_slot: int, table: bytes) -> Iterator[tuple[int, Entry]]:
    """The slots that have an entry; `table` begins with that of `first_slot` and ends with a whole one."""
    view, size, digest_of = memoryview(table), _FIELDS.size, xxhash.xxh3_64_intdigest
    for index, fields in enumerate(_ENTRY.iter_unpack(table)):
        key, checksum, seq, touched, depth, state, digest = fields
        slot, at = first_slot + index, index * ENTRY_BYTES
        if state in _STATES and digest_of(view[at : at + size], _FORMAT | slot) == digest:
            yield slot, Entry(key, checksum, seq, touched, depth, _STATES[state])


_STATES = {int(state): state for state in State}
