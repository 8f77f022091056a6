"""One process at a time works on a store's directory. Blocking calls, for threads."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path


class StoreInUse(RuntimeError):
    """Another process works on this directory."""


class StoreLock:
    """Held until `close`, or until the process dies. `writable` is False where the disk takes no files."""

    def __init__(self, root: Path) -> None:
        """Raises StoreInUse, OSError."""
        self.writable = True
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            self.writable = False
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.writable:
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace") if self.writable else ""
            os.close(self._fd)
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise StoreInUse(
                f"the store in {root} is in use by process {owner.strip() or 'unknown'}; "
                "stop that one first, or give this shard another directory"
            ) from error

    def close(self) -> None:
        os.close(self._fd)
