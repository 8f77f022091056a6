"""What a store's directory holds when it is opened. Blocking calls, for threads.

Entries up to the sync mark are taken at their word. Blocks written since then are read and checked: after a power
loss a block, its entry, or a part of either may be missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.entry import Entry, State, Table
from dualpath.kvstore.extent import Extent, numbers_in, remove_files, slot_bytes_of
from dualpath.kvstore.files import DiskFiles
from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)

_SPACE = re.compile(r"[0-9a-f]{16}-([0-9]+)\Z")


@dataclass
class Stored:
    """Blocks in the order in which they give way, in columns."""

    keys: list[bytes]
    slots: list[int]
    rows: NDArray[np.void]

    @classmethod
    def of(cls, tables: Sequence[tuple[Table, NDArray[np.intp]]]) -> Stored:
        """Those rows of some tables."""
        if not tables:
            return cls([], [], np.zeros(0, Table(0, b"").rows.dtype))
        rows = np.concatenate([table.rows[good] for table, good in tables])
        slots = np.concatenate([table.slots[good] for table, good in tables])
        order = np.lexsort((-rows["depth"].astype(np.int64), rows["touched"]))
        rows = rows[order]
        return cls(rows["key"].tolist(), slots[order].tolist(), rows)

    def drop_older(self) -> list[int]:
        """Of a block that is there twice, keep the one written last: the other's slot was given up, and the clearing
        of its entry did not get to the disk. Returns the slots of those dropped."""
        latest: dict[bytes, int] = {}
        for index, seq in enumerate(self.rows["seq"].tolist()):
            before = latest.get(self.keys[index])
            if before is None or self.rows["seq"][before] < seq:
                latest[self.keys[index]] = index
        kept = sorted(latest.values())
        dropped = sorted(set(range(len(self.keys))) - set(kept))
        slots = [self.slots[index] for index in dropped]
        self.keys, self.slots = [self.keys[i] for i in kept], [self.slots[i] for i in kept]
        self.rows = self.rows[kept]
        return slots


@dataclass
class RecoveredSpace:
    """One namespace: its extents, and the entries of its slots."""

    name: str
    block_bytes: int
    extents: dict[int, Extent] = field(default_factory=dict)
    stored: Stored = field(default_factory=lambda: Stored.of([]))
    aside: list[int] = field(default_factory=list)
    void: list[int] = field(default_factory=list)
    """Slots whose entry is not true (any more): to be cleared."""

    @property
    def slot_bytes(self) -> int:
        return slot_bytes_of(self.block_bytes)


@dataclass
class Recovered:
    spaces: list[RecoveredSpace] = field(default_factory=list)
    last_seq: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    unsynced: list[Extent] = field(default_factory=list)


def spaces_in(root: Path) -> Iterator[tuple[Path, int]]:
    """Directories of namespaces and their block sizes; other files are nobody's business."""
    for path in sorted(root.iterdir()):
        if (match := _SPACE.match(path.name)) and path.is_dir():
            yield path, int(match[1])


def recover(root: Path, files: DiskFiles, synced: int, *, writable: bool = True) -> Recovered:
    """Open all extents below `root`, and learn which blocks are there. Raises OSError; whatever is only damaged
    is counted, logged and left out."""
    found = Recovered(last_seq=synced)
    for path, block_bytes in spaces_in(root):
        space = RecoveredSpace(path.name, block_bytes)
        found.spaces.append(space)
        for number in numbers_in(path):
            if extent := _open(path, number, space, files, found, writable=writable):
                space.extents[number] = extent
        _learn(space, synced, found)
    return found


def _open(
    path: Path,
    number: int,
    space: RecoveredSpace,
    files: DiskFiles,
    found: Recovered,
    *,
    writable: bool,
) -> Extent | None:
    try:
        extent = Extent(files, path, number, space.slot_bytes, writable=writable)
    except FileNotFoundError:
        found.counters["extents_lost"] += 1
        log.warning(
            "an extent is there only in part and is removed", space=path.name, extent=number
        )
        if writable:
            remove_files(files, path, number)
        return None
    if extent.slots == 0:
        found.counters["extents_lost"] += 1
        if writable:
            extent.remove()
        else:
            extent.close()
        return None
    return extent


def _learn(space: RecoveredSpace, synced: int, found: Recovered) -> None:
    """Read the tables, and check what is not known to be whole."""
    tables = []
    for extent in space.extents.values():
        table = extent.table()
        seqs, good = table.rows["seq"], table.rows["state"] == State.STORED
        found.last_seq = max(found.last_seq, int(seqs.max(initial=0)))
        space.aside += table.slots[~good].tolist()
        recent = np.flatnonzero(good & (seqs > synced)).tolist()
        for index in recent:
            slot, entry = table[index]
            if _is_whole(extent, slot, entry, space.block_bytes):
                found.counters["checked_at_open"] += 1
            else:
                found.counters["torn_at_open"] += 1
                space.void.append(slot)
                good[index] = False
        if recent:
            found.unsynced.append(extent)
        tables.append((table, np.flatnonzero(good)))
    space.stored = Stored.of(tables)
    if len(set(space.stored.keys)) < len(space.stored.keys):
        space.void += space.stored.drop_older()


def _is_whole(extent: Extent, slot: int, entry: Entry, block_bytes: int) -> bool:
    block = memoryview(bytearray(block_bytes))
    try:
        return extent.read(slot, block) and block_checksum(entry.key, block) == entry.checksum
    except OSError:
        return False
