"""What a store's directory holds when it is opened. Blocking calls, for threads.

Entries up to the sync mark are taken at their word. Blocks written since then are read and checked: after a power
loss a block, its entry, or a part of either may be missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.entry import Entry, State
from dualpath.kvstore.extent import Extent, numbers_in, remove_files, slot_bytes_of
from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.index import SLOT_BITS
from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)

_SPACE = re.compile(r"[0-9a-f]{16}-([0-9]+)\Z")


@dataclass
class RecoveredSpace:
    """One namespace: its extents, and the entries of its slots."""

    name: str
    block_bytes: int
    extents: dict[int, Extent] = field(default_factory=dict)
    stored: list[tuple[int, Entry]] = field(default_factory=list)
    """In the order in which they give way."""
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
    latest: dict[bytes, tuple[int, Entry]] = {}
    for extent in space.extents.values():
        recent = False
        for slot, entry in extent.entries():
            found.last_seq = max(found.last_seq, entry.seq)
            if entry.state is State.ASIDE:
                space.aside.append(slot)
                continue
            if entry.seq > synced:
                recent = True
                if not _is_whole(extent, slot, entry, space.block_bytes):
                    found.counters["torn_at_open"] += 1
                    space.void.append(slot)
                    continue
                found.counters["checked_at_open"] += 1
            before = latest.get(entry.key)
            if before is not None:
                # Its slot was given up, and the entry's clearing did not get to the disk.
                older = min(before, (slot, entry), key=lambda item: item[1].seq)
                space.void.append(older[0])
                if older[0] == slot:
                    continue
            latest[entry.key] = (slot, entry)
        if recent:
            found.unsynced.append(extent)
    space.stored = sorted(latest.values(), key=_gives_way)


def _gives_way(item: tuple[int, Entry]) -> tuple[float, int]:
    return item[1].touched, -item[1].depth


def _is_whole(extent: Extent, slot: int, entry: Entry, block_bytes: int) -> bool:
    block = memoryview(bytearray(block_bytes))
    try:
        return extent.read(slot, block) and block_checksum(entry.key, block) == entry.checksum
    except OSError:
        return False


def extent_number(slot: int) -> int:
    return slot >> SLOT_BITS
