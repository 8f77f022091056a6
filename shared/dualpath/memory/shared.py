"""Memory that other processes of this host may map, to read."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref

_F_SEAL_FUTURE_WRITE = 0x0010
"""Of linux/fcntl.h, since Linux 5.1; the standard library does not have it before Python 3.13."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE
"""Nobody cuts it, so whoever has mapped it can read it; nobody else maps it to write."""


class SharedMemory:
    """`nbytes` bytes in a memfd. This process alone can write them; who gets `fd` can map and read them.

    Where the kernel cannot promise that (before Linux 5.1), or the process may have no files of this size (`ulimit
    -f`), `sealed` is False: it is memory as any other, and nobody is to get `fd`.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        self.fd = os.memfd_create(f"dualpath-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """Stays this object's, and is closed with it."""
        self._close = weakref.finalize(self, os.close, self.fd)
        self.view: memoryview
        """Writable, of format "B"; the mapping lives as long as a view of it does."""
        self.sealed = False
        try:
            os.ftruncate(self.fd, nbytes)
        except OSError:
            self.view = memoryview(mmap.mmap(-1, nbytes))
            return
        self.view = memoryview(mmap.mmap(self.fd, nbytes))
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.sealed = True

    def close(self) -> None:
        """Close the descriptor; views stay valid."""
        self._close()
