"""Writing new blocks into their slots. Blocking calls, for threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.entry import Entry, encode_entry
from dualpath.kvstore.extent import Extent


class NewBlock(NamedTuple):
    key: bytes
    checksum: bytes
    depth: int
    """Full blocks before this one in its chain."""
    data: memoryview


class Put(NamedTuple):
    """A block that goes into a slot."""

    extent: Extent
    slot: int
    seq: int
    block: NewBlock


@dataclass
class Outcome:
    """Indices of the puts by what became of them."""

    stored: list[int] = field(default_factory=list)
    untouched: list[int] = field(default_factory=list)
    """No entry was written."""
    doubtful: list[int] = field(default_factory=list)
    """An entry may have been written, or not."""
    damaged: int = 0
    """Of the untouched: blocks that did not match their checksum."""
    error: OSError | None = None


def put_blocks(puts: Sequence[Put], now: float) -> Outcome:
    """Write blocks, and then the entries of those that are whole; what does not match its checksum is left out.

    The first refusal of the disk ends it."""
    outcome, written = Outcome(), list[int]()
    for index, put in enumerate(puts):
        if outcome.error is not None or not _arrived(put.block):
            outcome.damaged += outcome.error is None
            outcome.untouched.append(index)
            continue
        try:
            put.extent.write(put.slot, put.block.data)
            written.append(index)
        except OSError as error:
            outcome.error = error
            outcome.untouched.append(index)
    by_extent: defaultdict[Extent, list[int]] = defaultdict(list)
    for index in written:
        by_extent[puts[index].extent].append(index)
    for extent, indices in by_extent.items():
        try:
            extent.record([_entry(puts[index], now) for index in indices])
            outcome.stored += indices
        except OSError as error:
            outcome.error = error
            outcome.doubtful += indices
    return outcome


def _arrived(block: NewBlock) -> bool:
    return block_checksum(block.key, block.data) == block.checksum


def _entry(put: Put, now: float) -> tuple[int, bytes]:
    block = put.block
    entry = Entry(block.key, block.checksum, put.seq, now, block.depth)
    return put.slot, encode_entry(put.slot, entry)
