"""An extent on the disk: a file of slots for blocks, and a table of what is in them. Blocking calls, for threads.

    000012.slots    the blocks, each from a page's start on
    000012.table    an entry per slot (see `entry`)

Both have their full size from the beginning. A block is written before its entry, so it is there whole or not at
all, whenever the process dies. A slot is used anew only after its cleared entry has been synced: an entry that a
power loss brings back still tells the truth.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from dualpath.kvstore.entry import ENTRY_BYTES, NO_ENTRY, Table
from dualpath.kvstore.files import DiskFile, DiskFiles
from dualpath.kvstore.index import MAX_SLOTS, SLOT_BITS
from dualpath.kvstore.mapped import MappedFile
from dualpath.memory.file_part import FilePart

PAGE_BYTES = 4096
SLOTS_SUFFIX, TABLE_SUFFIX = ".slots", ".table"


def slot_bytes_of(block_bytes: int) -> int:
    """What a block takes of the disk: whole pages."""
    return -(-block_bytes // PAGE_BYTES) * PAGE_BYTES


class Extent:
    """The open files of one extent. Calls raise OSError where the disk refuses; the methods for different slots
    may run at the same time."""

    def __init__(
        self, files: DiskFiles, directory: Path, number: int, slot_bytes: int, *, writable: bool
    ) -> None:
        """Open an extent that is there; raises FileNotFoundError where it is not, or only in part."""
        self.number = number
        self.slot_bytes = slot_bytes
        self._files = files
        self._paths = _paths(directory, number)
        self._slots = files.open(self._paths[0], writable=writable)
        self._direct: DiskFile | None = None
        self._mapped: MappedFile | None = None
        try:
            self._slots.read_at_random()
            self._table = files.open(self._paths[1], writable=writable)
        except OSError:
            self._slots.close()
            raise
        self.slots = min(self._slots.nbytes // slot_bytes, self._table.nbytes // ENTRY_BYTES)

    @classmethod
    def create(
        cls, files: DiskFiles, directory: Path, number: int, slots: int, slot_bytes: int
    ) -> Extent:
        """A new extent, with room on the disk for all its blocks. What a failure leaves is removed."""
        paths = _paths(directory, number)
        directory.mkdir(exist_ok=True)
        try:
            for path, nbytes in zip(paths, (slot_bytes, ENTRY_BYTES), strict=True):
                files.create(path, slots * nbytes).close()
            files.sync_directory(directory)
            return cls(files, directory, number, slot_bytes, writable=True)
        except OSError:
            for path in paths:
                files.remove(path)
            raise

    def read_directly(self) -> None:
        """Make ready to read past the page cache; does nothing where the file system cannot."""
        try:
            self._direct = self._files.open(self._paths[0], writable=False, direct=True)
        except OSError:
            self._direct = None

    # ── blocks ─────────────────────────────────────────────────────────────────────────────────────
    def read(self, slot: int, into: memoryview, *, direct: bool = False) -> bool:
        """Fill `into` from the slot's start; False where the file has been cut. `direct` passes by the page cache,
        where `read_directly` has said so: `into` is whole pages then, from a page's start on."""
        file = self._direct if direct and self._direct is not None else self._slots
        return file.read([into], _place(slot) * self.slot_bytes)

    def read_cached(self, slot: int, into: memoryview) -> bool:
        """`read` where that waits for no disk. False, and `into` undefined, where it would, or might."""
        return self._slots.read_cached(into, _place(slot) * self.slot_bytes)

    def map(self) -> bool:
        """Make ready to read in place; False where the file system cannot."""
        try:
            self._mapped = MappedFile(self._slots.fd, self.slots * self.slot_bytes)
        except (OSError, ValueError):
            return False
        return True

    def cached(self, slot: int, nbytes: int) -> bool:
        """Whether to read the first `nbytes` bytes of a slot in place waits for no disk."""
        return self._mapping().cached(_place(slot) * self.slot_bytes, nbytes)

    def prefetch(self, slot: int, nbytes: int) -> None:
        """Begin to read into the page cache."""
        with contextlib.suppress(OSError):
            self._slots.prefetch(_place(slot) * self.slot_bytes, nbytes)

    def fetch(self, slot: int, nbytes: int) -> bool:
        """Have a slot's first `nbytes` bytes in the page cache, to be read in place; False where the file has been
        cut."""
        self._mapping()
        return self._slots.fetch(_place(slot) * self.slot_bytes, nbytes)

    def part(self, slot: int, nbytes: int) -> FilePart:
        """The first `nbytes` bytes of a slot where they are; to be used while the extent is open."""
        return FilePart(self._slots.fd, _place(slot) * self.slot_bytes, nbytes)

    def _mapping(self) -> MappedFile:
        if self._mapped is None:
            raise OSError(errno.ENODEV, "the extent is not mapped")
        return self._mapped

    def write(self, slot: int, block: memoryview) -> None:
        self._slots.write([block], _place(slot) * self.slot_bytes)

    # ── entries ────────────────────────────────────────────────────────────────────────────────────
    def table(self) -> Table:
        """All slots that have an entry, from the disk."""
        raw = bytearray(self.slots * ENTRY_BYTES)
        whole = self._table.read([memoryview(raw)], 0)
        return Table(self.number << SLOT_BITS, bytes(raw) if whole else b"")

    def record(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Write entries (`encode_entry`), those of neighbouring slots in one go."""
        pending = sorted(entries)
        while pending:
            run = 1
            while run < len(pending) and pending[run][0] == pending[0][0] + run:
                run += 1
            raw = b"".join(entry for _, entry in pending[:run])
            self._table.write([memoryview(raw)], _place(pending[0][0]) * ENTRY_BYTES)
            pending = pending[run:]

    def clear(self, slots: Sequence[int]) -> None:
        """Remove entries, and see that they stay removed: the slots may be used anew."""
        self.record([(slot, NO_ENTRY) for slot in slots])
        self._table.sync()

    def sync(self) -> None:
        """When this returns, what was written before is on the disk."""
        self._slots.sync()
        self._table.sync()

    # ── the end ────────────────────────────────────────────────────────────────────────────────────
    def shrink(self, slots: int) -> None:
        """Keep the first `slots` slots."""
        self._table.shrink(slots * ENTRY_BYTES)
        self._slots.shrink(slots * self.slot_bytes)
        self.slots = slots

    def remove(self) -> None:
        """Close the extent and give its place on the disk back."""
        self.close()
        for path in reversed(self._paths):
            self._files.remove(path)
        self._files.sync_directory(self._paths[0].parent)

    def close(self) -> None:
        for file in (self._slots, self._table, self._direct):
            if file is not None:
                file.close()
        self._mapped = None


def numbers_in(directory: Path) -> list[int]:
    """The extents that a directory holds files of."""
    names = {name for name in os.listdir(directory) if name.endswith((SLOTS_SUFFIX, TABLE_SUFFIX))}
    stems = {name.partition(".")[0] for name in names}
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def remove_files(files: DiskFiles, directory: Path, number: int) -> None:
    """Remove what there is of an extent that cannot be opened."""
    for path in _paths(directory, number):
        files.remove(path)


def _paths(directory: Path, number: int) -> tuple[Path, Path]:
    return directory / f"{number:06}{SLOTS_SUFFIX}", directory / f"{number:06}{TABLE_SUFFIX}"


def _place(slot: int) -> int:
    return slot & (MAX_SLOTS - 1)
