"""Looking at a directory of blocks from outside, and tidying it up. Blocking calls; each may raise OSError."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dualpath.kvstore.directory.census import Holdings, tidy
from dualpath.kvstore.directory.keeper import KeeperLock
from dualpath.kvstore.directory.layout import Space, each, key_of, spaces_in, taken_bytes
from dualpath.kvstore.files import DiskFile
from dualpath.kvstore.sealed import TRAILER_BYTES, is_whole
from dualpath.kvstore.survey import Checked, SpaceStat


@dataclass(frozen=True)
class Tidied:
    """What was given back to the disk, and how many blocks are left."""

    nbytes: int
    blocks: int


def stat_directory(root: Path) -> list[SpaceStat]:
    """Blocks by namespace; `touched` is when they were used."""
    return [_stat(space) for space in spaces_in(root)]


def _stat(space: Space) -> SpaceStat:
    times: list[float] = []
    asides: list[str] = []
    each(space.blocks, lambda parent: each(Path(parent.path), lambda b: times.append(_used(b))))
    each(space.aside, lambda entry: asides.append(entry.name))
    return SpaceStat(
        space.name,
        space.fingerprint(),
        space.block_bytes,
        len(times),
        len(asides),
        (len(times) + len(asides)) * taken_bytes(space.file_bytes),
        (min(times), max(times)) if times else None,
    )


def _used(entry: os.DirEntry[str]) -> float:
    return entry.stat().st_mtime


def verify_directory(root: Path) -> Iterator[Checked]:
    """Read every block and compare it with its checksum. One that is removed meanwhile is not reported."""
    for space in spaces_in(root):
        block = memoryview(bytearray(space.block_bytes))
        trailer = memoryview(bytearray(TRAILER_BYTES))
        for parent in sorted(path for path in space.blocks.iterdir() if path.is_dir()):
            for name in sorted(os.listdir(parent)):
                key = key_of(name)
                if key is None:
                    continue
                try:
                    file = DiskFile(parent / name, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                with closing(file):
                    right = (
                        file.nbytes == space.file_bytes
                        and file.read([block, trailer], 0)
                        and is_whole(key, block, trailer)
                    )
                yield Checked(space.name, key, space.block_bytes, right)


def collect_directory(root: Path, capacity_bytes: int | None, unused_s: float | None) -> Tidied:
    """Remove damaged blocks, what dead processes left, what nobody used for so long, and what is above the capacity.
    Raises StoreInUse while a cluster works on the directory."""
    with _alone(root):
        before = Holdings(root).nbytes
        for space in spaces_in(root):
            each(space.aside, lambda entry: os.unlink(entry.path))
        tidy(root, stale_s=0.0)
        holdings = Holdings(root)
        since = None if unused_s is None else time.time_ns() - int(unused_s * 1e9)
        most = holdings.nbytes if capacity_bytes is None else capacity_bytes
        removed = holdings.make_room(most, since)
        return Tidied(before - holdings.nbytes, len(holdings) - removed)


def drop_directory(root: Path, fingerprint: str | None) -> int:
    """Remove the blocks of a model, or of all; returns how many namespaces went. Raises StoreInUse."""
    with _alone(root):
        wanted = [s for s in spaces_in(root) if fingerprint in (None, s.fingerprint())]
        for space in wanted:
            shutil.rmtree(space.path)
        return len(wanted)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    lock = KeeperLock(root)
    lock.demand()
    try:
        yield
    finally:
        lock.close()
