"""Blocks of one namespace, as files. Blocking calls, for threads; each may raise OSError."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.directory.layout import Space, each
from dualpath.kvstore.files import DiskFile, DiskFiles
from dualpath.kvstore.quarantine import QUARANTINE_KEPT
from dualpath.kvstore.sealed import TRAILER_BYTES, is_whole, seal
from dualpath.telemetry.logs import get_logger
from dualpath.wire.store import Namespace

log = get_logger(__name__)

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)


class BlockFiles:
    """A block appears under its name whole, in one step, and never changes: so whoever finds it may read it, without
    asking anybody. A time stamp, of which deeper blocks of a chain have an older one, says how long it is unused."""

    def __init__(self, space: Space, namespace: Namespace, *, fsync: bool = False) -> None:
        """With `fsync` a block that was put survives a power loss; else one may be gone or damaged after it, and
        damage is found by its reader."""
        self.space = space
        self._namespace = namespace
        self._fsync = fsync

    def stamps(self, keys: Sequence[bytes]) -> list[int | None]:
        """When each block was used last, in ns; None where it is not there, or not whole."""
        found: list[int | None] = []
        for key in keys:
            try:
                seen = os.stat(self.space.block(key))
            except (FileNotFoundError, NotADirectoryError):
                found.append(None)
            else:
                found.append(seen.st_mtime_ns if seen.st_size == self.space.file_bytes else None)
        return found

    def touch(self, keys: Sequence[bytes], now_ns: int) -> None:
        """Say that a chain was used; of what is gone meanwhile nothing is said."""
        for depth, key in enumerate(keys):
            with suppress(FileNotFoundError):
                stamp = stamp_ns(now_ns, depth)
                os.utime(self.space.block(key), ns=(stamp, stamp))

    def read(self, key: bytes, into: memoryview) -> ReadStatus:
        """Read and verify a block; a damaged one is put aside, so that it is written anew."""
        inode = 0
        # What damages a block on its way from a disk or a server may do so once.
        for _ in range(2):
            try:
                file = DiskFile(Path(self.space.block(key)), os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return ReadStatus.ABSENT
            with closing(file):
                inode = os.fstat(file.fd).st_ino
                trailer = memoryview(bytearray(TRAILER_BYTES))
                if (
                    file.nbytes == self.space.file_bytes
                    and file.read([into, trailer], 0)
                    and is_whole(key, into, trailer)
                ):
                    return ReadStatus.FOUND
        self._put_aside(key, inode)
        return ReadStatus.CORRUPT

    def put(self, key: bytes, block: memoryview, depth: int, now_ns: int) -> WriteStatus:
        path, stamp = Path(self.space.block(key)), stamp_ns(now_ns, depth)
        with suppress(FileNotFoundError):
            there = path.stat()
            if there.st_size == self.space.file_bytes:
                os.utime(path, ns=(stamp, stamp))
                return WriteStatus.EXISTS
            self._put_aside(key, there.st_ino)
        new = self.space.new_file()
        try:
            with closing(self._create(new)) as file:
                file.write([block, memoryview(seal(key, block, depth))], 0)
                os.utime(file.fd, ns=(stamp, stamp))
                if self._fsync:
                    os.fsync(file.fd)
            return WriteStatus.STORED if self._publish(new, path) else WriteStatus.EXISTS
        finally:
            new.unlink(missing_ok=True)

    def _create(self, path: Path) -> DiskFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return DiskFile(path, flags)
        except FileNotFoundError:
            # The first block, or somebody has dropped the namespace.
            self.space.make(self._namespace)
            return DiskFile(path, flags)

    def _publish(self, new: Path, path: Path) -> bool:
        """Give a whole file its name. False where another writer was faster."""
        try:
            try:
                os.link(new, path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                if self._fsync:
                    DiskFiles().sync_directory(path.parent.parent)
                os.link(new, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # No links here. This may replace another writer's block: of the same key, so as right as that.
            path.parent.mkdir(parents=True, exist_ok=True)
            new.rename(path)
        if self._fsync:
            DiskFiles().sync_directory(path.parent)
        return True

    def _put_aside(self, key: bytes, inode: int) -> None:
        """Take a damaged file out of the way, unless another has its place by now."""
        path = Path(self.space.block(key))
        log.warning("corrupt block is put aside", space=self.space.name, key=key.hex())
        with suppress(FileNotFoundError):
            if path.stat().st_ino == inode:
                self.space.aside.mkdir(parents=True, exist_ok=True)
                path.rename(self.space.aside / path.name)
        kept: list[tuple[int, str]] = []
        each(self.space.aside, lambda entry: kept.append((entry.stat().st_ctime_ns, entry.path)))
        for _, old in sorted(kept)[: max(0, len(kept) - QUARANTINE_KEPT)]:
            Path(old).unlink(missing_ok=True)


def stamp_ns(now_ns: int, depth: int) -> int:
    """The time stamp of a block with `depth` blocks of its chain before it: a microsecond older each, so that room is
    made at a chain's end first."""
    return now_ns - 1000 * depth
