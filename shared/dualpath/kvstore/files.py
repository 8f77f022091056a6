"""The few things that a shard does with files. Blocking calls, for threads.

All of its I/O goes through here, so that a test can put a disk in its place that forgets what was not synced.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from pathlib import Path

Views = list[memoryview]


class DiskFile:
    """An open file of a size that only `shrink` changes. Every call may raise OSError."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    @property
    def nbytes(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, views: Views, offset: int) -> bool:
        """Fill `views`; False where the file ends before they are full."""
        while views:
            count = os.preadv(self.fd, views, offset)
            if count == 0:
                return False
            offset += count
            views = _after(views, count)
        return True

    def read_cached(self, view: memoryview, offset: int) -> bool:
        """Fill `view` if all of it can be had without waiting for the disk; False where it can't, or where the file
        system cannot tell."""
        try:
            return os.preadv(self.fd, [view], offset, os.RWF_NOWAIT) == len(view)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return False
            raise

    def prefetch(self, offset: int, nbytes: int) -> None:
        """Have the kernel begin to read this into the page cache."""
        os.posix_fadvise(self.fd, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def fetch(self, offset: int, nbytes: int) -> bool:
        """Have this in the page cache; False where the file ends before. Copies nothing."""
        while nbytes:
            count = os.sendfile(_nowhere(), self.fd, offset, nbytes)
            if count == 0:
                return False
            offset, nbytes = offset + count, nbytes - count
        return True

    def read_at_random(self) -> None:
        """Read ahead no further than what is asked for."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def write(self, views: Views, offset: int) -> None:
        while views:
            count = os.pwritev(self.fd, views, offset)
            offset += count
            views = _after(views, count)

    def shrink(self, nbytes: int) -> None:
        os.ftruncate(self.fd, nbytes)

    def sync(self) -> None:
        """When this returns, all that was written is on the disk."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class DiskFiles:
    """A directory tree of an ordinary file system. Every call may raise OSError."""

    def create(self, path: Path, nbytes: int) -> DiskFile:
        """A new file of `nbytes` zeros, for which the disk has room. It is there after a power loss once
        `sync_directory` was called."""
        file = DiskFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if nbytes:
                os.posix_fallocate(file.fd, 0, nbytes)
            os.fsync(file.fd)
        except OSError:
            file.close()
            path.unlink()
            raise
        return file

    def open(self, path: Path, *, writable: bool = True, direct: bool = False) -> DiskFile:
        """`direct` passes by the page cache (O_DIRECT): memory, offsets and lengths are of whole pages then."""
        mode = os.O_RDWR if writable else os.O_RDONLY
        return DiskFile(path, mode | (os.O_DIRECT if direct else 0))

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _after(views: Views, count: int) -> Views:
    """What remains of `views` after their first `count` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
