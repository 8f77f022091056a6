"""Memory that other processes of this host may map, to read."""

from __future__ import annotations

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

    Where the kernel cannot promise that (before Linux 5.1), `sealed` is False, and nobody is to get `fd`.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        self.fd = os.memfd_create(f"dualpath-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """Stays this object's, and is closed with it."""
        self._close = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, nbytes)
        self.view = memoryview(mmap.mmap(self.fd, nbytes))
        """Writable, of format "B"; the mapping lives as long as a view of it does."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            self.sealed = False
        else:
            self.sealed = True

    def close(self) -> None:
        """Close the descriptor; views stay valid."""
        self._close()
