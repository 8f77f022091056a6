"""What the page cache holds of a file."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_mincore.restype = ctypes.c_int


class MappedFile:
    """The first `nbytes` of a file. Offsets are those of pages. Raises OSError where it cannot be mapped, ValueError
    where it is shorter.

    Nobody touches the mapping, the kernel is asked about its pages: a process that read one which the disk refuses,
    or of a file that has been cut, would die of it (SIGBUS).
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
        self._address: int = np.frombuffer(self._map, np.uint8).ctypes.data

    def cached(self, offset: int, nbytes: int) -> bool:
        """Whether to read this waits for no disk: all of its pages are in the page cache."""
        pages = -(-nbytes // mmap.PAGESIZE)
        there = ctypes.create_string_buffer(pages)
        if _mincore(self._address + offset, nbytes, there):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return there.raw.count(1) == pages
