"""Blocks on a disk: one directory per namespace, one file per block, an index of what is there in memory.

Where its bytes are bounded, the blocks that were used longest ago give way to new ones. Uses (`use`) are
remembered in memory only: after a restart, a block counts as used when it was written.

    root/lock                              held (flock) by the process that uses the store
    root/tmp/…                             files being written; removed when the store opens
    root/quarantine/…                      the last few files that were corrupt, for whoever looks into it
    root/<namespace>/namespace.json        fingerprint and block size, for people
    root/<namespace>/<2 hex>/<32 hex>.kv   a block (see `blockfile`)

Killed at any moment, it leaves each block whole or absent. Blocks are verified against their checksums
at every read: hashing costs a fifth of what reading from the page cache does, and only whoever has the file
at hand can tell damage on the disk from damage on the way, and put the file aside.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TypeVar

import msgspec

from dualpath.kvstore.api import ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.blockfile import (
    HEADER_BYTES,
    CorruptBlock,
    publish,
    read_block,
    write_block,
)
from dualpath.kvstore.checksum import CHECKSUM_BYTES, block_checksum
from dualpath.kvstore.index import BlockIndex, BlockName
from dualpath.kvstore.scan import Scan, scan_blocks
from dualpath.kvstore.tasks import Threads
from dualpath.telemetry.logs import get_logger
from dualpath.wire.store import Namespace

Status = TypeVar("Status", ReadStatus, WriteStatus)
log = get_logger(__name__)

QUARANTINE_KEPT = 16
_SUFFIX = ".kv"
_NO_CHECKSUM = bytes(CHECKSUM_BYTES)


class StoreInUse(RuntimeError):
    """Another process works on this directory."""


def namespace_dir(namespace: Namespace) -> str:
    """Directory name of a namespace: safe whatever the fingerprint is made of."""
    digest = hashlib.blake2b(namespace.fingerprint.encode(), digest_size=8).hexdigest()
    return f"{digest}-{namespace.block_bytes}"


def _nobody(name: BlockName) -> bool:
    return False


class DiskStore:
    """Blocks of all namespaces under one directory. One event loop owns it; files are touched in threads."""

    def __init__(
        self,
        root: Path,
        *,
        fsync: bool = False,
        threads: int = 4,
        capacity_bytes: int | None = None,
        held: Callable[[BlockName], bool] = _nobody,
    ) -> None:
        """With `fsync` a block that counts as stored survives a power loss, not only the process's death.
        `capacity_bytes` bounds the bytes of all block files; of these, `held` ones never give way."""
        self.root = root
        self.counters: Counter[str] = Counter()
        self._fsync = fsync
        self._threads = Threads(threads, "disk")
        self._index = BlockIndex(capacity_bytes)
        self._held = held
        self._leaving: set[BlockName] = set()
        """Blocks that gave way, and whose files are still being removed."""
        self._lock_fd: int | None = None
        self._names = count()
        # Publishing and putting aside exclude each other: a good new file is never put aside for the old.
        self._naming = Lock()
        self._failing: set[str] = set()

    # ── life ───────────────────────────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        """Lock the directory and index what is there; remove what is more than it may hold. Raises StoreInUse, or
        OSError where it is unusable."""
        await self._threads.run(self._lock)
        scan = await self._threads.run(self._scan)
        self._index.fill((name, nbytes) for _, name, nbytes in sorted(scan.blocks))
        if victims := self._index.reserve(0, self._held):
            self.counters["evicted"] += len(victims)
            await self._threads.run(partial(self._remove, victims))
        for path in scan.wrong_size:
            self.counters["wrong_size_at_open"] += 1
            log.warning("block file of a wrong size is put aside", file=str(path))
            await self._threads.run(partial(self._put_aside, path, None))

    async def close(self) -> None:
        self._threads.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _lock(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise StoreInUse(
                f"the store in {self.root} is in use by process {owner or 'unknown'}; "
                "stop that one first, or give this shard another directory"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _scan(self) -> Scan:
        for name in ("tmp", "quarantine"):
            (self.root / name).mkdir(exist_ok=True)
        with os.scandir(self.root / "tmp") as stray:
            for entry in stray:
                os.unlink(entry.path)
        return scan_blocks(self.root)

    # ── what is there ──────────────────────────────────────────────────────────────────────────────
    def present(self, namespace: Namespace, keys: Sequence[bytes]) -> bytes:
        """One byte per key: 1 where it is stored, else 0."""
        return self._index.present(namespace_dir(namespace), keys)

    def use(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """Count blocks of a chain as used now, the first ones last: where only a part of a chain gives way, what
        is left should still be a prefix."""
        space = namespace_dir(namespace)
        for key in reversed(keys):
            self._index.use(BlockName(space, key))

    def stat(self, namespace: Namespace | None = None) -> StoreStat:
        """Blocks and their bytes, of one namespace or of all."""
        counts = self._index.counts()
        spaces = counts if namespace is None else [namespace_dir(namespace)]
        sizes = [(counts[space], int(space.rpartition("-")[2])) for space in spaces]
        return StoreStat(sum(n for n, _ in sizes), sum(n * size for n, size in sizes))

    # ── blocks ─────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, namespace: Namespace, key: bytes, into: memoryview
    ) -> tuple[ReadStatus, bytes]:
        """Read a block into `into` (of the block's size) and verify it; the second value is its checksum.

        FAILED where the disk could not be read; a file that is not the block is put aside. What `into` holds
        after any status but FOUND is undefined. When this ends, also by cancellation, `into` is left alone.
        """
        name = BlockName(namespace_dir(namespace), key)
        path = self._path(name)
        if name not in self._index:
            return self._counted(ReadStatus.ABSENT), _NO_CHECKSUM
        try:
            checksum = await self._threads.run(partial(read_block, path, key, into))
        except CorruptBlock as error:
            log.warning("corrupt block is put aside", file=str(path), what=str(error))
            self._index.discard(name)
            if not await self._threads.run(partial(self._put_aside, path, error.inode)):
                self._index.add(name, HEADER_BYTES + namespace.block_bytes)
            return self._counted(ReadStatus.CORRUPT), _NO_CHECKSUM
        except FileNotFoundError:
            self._index.discard(name)
            return self._counted(ReadStatus.ABSENT), _NO_CHECKSUM
        except OSError as error:
            self._failed("read", error)
            return self._counted(ReadStatus.FAILED), _NO_CHECKSUM
        self._worked("read")
        return self._counted(ReadStatus.FOUND), checksum

    async def write(
        self, namespace: Namespace, key: bytes, checksum: bytes, block: memoryview
    ) -> WriteStatus:
        """Store a block, unless it is there. NOT_STORED where the disk refuses, all that it may hold is held, or
        `block` does not match `checksum`. When this ends, also by cancellation, `block` is not read any more."""
        name, nbytes = BlockName(namespace_dir(namespace), key), HEADER_BYTES + len(block)
        if name in self._index:
            return self._counted(WriteStatus.EXISTS)
        # A file that is about to be removed cannot be told from the one that would take its name.
        victims = None if name in self._leaving else self._index.reserve(nbytes, self._held)
        if victims is None:
            self.counters["write_no_space"] += 1
            return self._counted(WriteStatus.NOT_STORED)
        self._leaving.update(victims)
        try:
            right = await self._threads.run(
                partial(self._replace, victims, namespace, name, checksum, block)
            )
        except OSError as error:
            self._failed("write", error)
            return self._counted(WriteStatus.NOT_STORED)
        finally:
            self.counters["evicted"] += len(victims)
            self._leaving.difference_update(victims)
            self._index.unreserve(nbytes)
        self._worked("write")
        if not right:
            log.warning("block arrived damaged and is not stored", key=key.hex())
            self.counters["arrived_damaged"] += 1
            return self._counted(WriteStatus.NOT_STORED)
        self._index.add(name, nbytes)
        return self._counted(WriteStatus.STORED)

    def _replace(
        self,
        victims: Sequence[BlockName],
        namespace: Namespace,
        name: BlockName,
        checksum: bytes,
        block: memoryview,
    ) -> bool:
        """Remove the victims' files and write the block; False where that does not match its checksum."""
        self._remove(victims)
        if block_checksum(name.key, block) != checksum:
            return False
        directory = self.root / name.space
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            (directory / "namespace.json").write_bytes(msgspec.json.encode(namespace))
        self._store(name, checksum, block)
        return True

    def _remove(self, victims: Sequence[BlockName]) -> None:
        for victim in victims:
            self._path(victim).unlink(missing_ok=True)

    def _store(self, name: BlockName, checksum: bytes, block: memoryview) -> None:
        temporary = self.root / "tmp" / f"{next(self._names)}{_SUFFIX}"
        temporary.parent.mkdir(exist_ok=True)
        try:
            write_block(temporary, name.key, checksum, block, fsync=self._fsync)
            with self._naming:
                publish(temporary, self._path(name), fsync=self._fsync)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def _put_aside(self, path: Path, inode: int | None) -> bool:
        """Move a corrupt file out of the way, if it is still that file; False where a new one took its place."""
        aside = self.root / "quarantine"
        with self._naming:
            try:
                if inode is not None and path.stat().st_ino != inode:
                    return False
                os.rename(path, aside / f"{path.parent.parent.name}-{path.name}")
                self.counters["quarantined"] += 1
                newest = sorted(aside.iterdir(), key=lambda file: -file.stat().st_mtime_ns)
                for file in newest[QUARANTINE_KEPT:]:
                    file.unlink()
            except OSError as error:
                log.warning(
                    "corrupt block could not be put aside", file=str(path), error=str(error)
                )
        return True

    def _path(self, name: BlockName) -> Path:
        text = name.key.hex()
        return self.root / name.space / text[:2] / f"{text}{_SUFFIX}"

    # ── telling ────────────────────────────────────────────────────────────────────────────────────
    def _counted(self, status: Status) -> Status:
        what = "read" if isinstance(status, ReadStatus) else "write"
        self.counters[f"{what}_{status.name.lower()}"] += 1
        return status

    def _failed(self, what: str, error: OSError) -> None:
        """Count an error of the disk; warn about the first of a row only."""
        self.counters[f"{what}_errors"] += 1
        if what not in self._failing:
            self._failing.add(what)
            log.warning(f"the disk refuses to {what} blocks", root=str(self.root), error=str(error))

    def _worked(self, what: str) -> None:
        if what in self._failing:
            self._failing.discard(what)
            log.info(f"the disk {what}s blocks again", root=str(self.root))
