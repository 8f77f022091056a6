"""What a directory holds, and making room in it. Blocking calls, for threads; each may raise OSError."""

from __future__ import annotations

import os
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dualpath.blocks.keys import KEY_BYTES
from dualpath.kvstore.directory.layout import Space, each, key_of, spaces_in, taken_bytes
from dualpath.kvstore.directory.pins import doom, pardon, pinned

DOOMED_BLOCKS = 256
"""Blocks that are removed at a time: what is doomed counts as gone for whoever takes a lease meanwhile."""

STALE_S = 3600.0
"""A file that nobody has finished writing in so long is a dead process's."""


class Holdings:
    """Every block of a directory, 26 bytes of memory each."""

    def __init__(self, root: Path) -> None:
        """Counts them, which takes a `stat` per block."""
        self.spaces = spaces_in(root)
        self.nbytes = 0
        """What all files take, those that are no blocks included."""
        self._stamps = array("q")
        self._keys = bytearray()
        self._space = array("H")
        for number, space in enumerate(self.spaces):
            self._count(number, space)

    def __len__(self) -> int:
        return len(self._stamps)

    def _count(self, number: int, space: Space) -> None:
        def block(entry: os.DirEntry[str]) -> None:
            seen = entry.stat()
            self.nbytes += taken_bytes(seen.st_size)
            if (key := key_of(entry.name)) is not None:
                self._stamps.append(seen.st_mtime_ns)
                self._keys += key
                self._space.append(number)

        def other(entry: os.DirEntry[str]) -> None:
            self.nbytes += taken_bytes(entry.stat().st_size)

        each(space.blocks, lambda entry: each(Path(entry.path), block))
        each(space.aside, other)
        each(space.incoming, other)

    def oldest_first(self) -> Iterator[tuple[int, Space, bytes]]:
        """Stamp in ns, namespace and key of each block."""
        for at in np.argsort(np.frombuffer(self._stamps, np.int64), kind="stable").tolist():
            key = bytes(self._keys[at * KEY_BYTES : (at + 1) * KEY_BYTES])
            yield self._stamps[at], self.spaces[self._space[at]], key

    def make_room(self, most_bytes: int, unused_since_ns: int | None = None) -> int:
        """Remove blocks, those unused longest first, until all files take `most_bytes` at most, and all that were not
        used since then. Blocks under a lease stay, and those that were used meanwhile. Returns how many went."""
        removed, batch = 0, list[tuple[int, Space, bytes]]()
        over = self.nbytes - most_bytes
        for stamp, space, key in self.oldest_first():
            if over <= 0 and (unused_since_ns is None or stamp >= unused_since_ns):
                break
            batch.append((stamp, space, key))
            over -= taken_bytes(space.file_bytes)
            if len(batch) == DOOMED_BLOCKS:
                gone = self._remove(batch)
                over += sum(taken_bytes(space.file_bytes) for _, space, _ in batch) - gone[1]
                removed, batch = removed + gone[0], []
        return removed + self._remove(batch)[0]

    def _remove(self, batch: Sequence[tuple[int, Space, bytes]]) -> tuple[int, int]:
        """Blocks and bytes that went."""
        by_space: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
        spaces = {space.name: space for _, space, _ in batch}
        for stamp, space, key in batch:
            by_space[space.name].append((stamp, key))
        blocks = nbytes = 0
        for name, doomed in by_space.items():
            space = spaces[name]
            doom(space, [key for _, key in doomed])
            try:
                kept = pinned(space)
                went = sum(
                    _remove_unused(space, key, stamp) for stamp, key in doomed if key not in kept
                )
            finally:
                pardon(space)
            blocks += went
            nbytes += went * taken_bytes(space.file_bytes)
        self.nbytes -= nbytes
        return blocks, nbytes


def _remove_unused(space: Space, key: bytes, stamp: int) -> bool:
    path = space.block(key)
    try:
        if os.stat(path).st_mtime_ns != stamp:
            return False
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def tidy(root: Path, stale_s: float = STALE_S) -> None:
    """Remove what dead processes left: half-written files, pins that have expired, and what a keeper had doomed. For
    the keeper alone."""
    before = time.time() - stale_s
    for space in spaces_in(root):
        pardon(space)

        def look(entry: os.DirEntry[str]) -> None:
            if entry.stat().st_mtime < before:
                os.unlink(entry.path)

        each(space.incoming, look)
        if space.pins.is_dir():
            pinned(space)
