"""Bytes of an open file, where memory would do: the kernel sends them out of its page cache, without a copy."""

from __future__ import annotations

import os


class FilePart:
    """`nbytes` bytes of the file `fd` from `offset` on; it has a length and can be sliced as a memoryview can.

    Whoever made it keeps the file open, and those bytes as they are, for as long as it is used.
    """

    __slots__ = ("fd", "nbytes", "offset")

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.fd = fd
        self.offset = offset
        self.nbytes = nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> FilePart:
        start, stop, step = part.indices(self.nbytes)
        if step != 1:
            raise ValueError("a part of a file has no steps")
        return FilePart(self.fd, self.offset + start, max(stop - start, 0))

    def __bytes__(self) -> bytes:
        """A copy. Raises OSError, also where the file ends before."""
        data = os.pread(self.fd, self.nbytes, self.offset)
        if len(data) < self.nbytes:
            raise OSError(f"a file ends {self.nbytes - len(data)} bytes before what is sent of it")
        return data


Piece = memoryview | FilePart
