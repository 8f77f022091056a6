"""How far a store has been synced: one sequence number in a small file. Blocking calls, for threads.

Every entry up to the mark is on the disk together with its block. What lies above was written since, and is
checked when the store opens. The mark is written to two pages in turn: a torn one leaves the one before.
"""

from __future__ import annotations

import struct
from pathlib import Path

import xxhash

from dualpath.kvstore.files import DiskFiles

_MARK = struct.Struct("<8sQ")
_MAGIC = b"dualpath"
_PAGE_BYTES = 4096


class SyncMark:
    """The mark of the store in a directory; `seq` is 0 where nothing is known."""

    def __init__(self, files: DiskFiles, root: Path, *, writable: bool = True) -> None:
        """Raises OSError."""
        path = root / "synced"
        if writable and not path.exists():
            files.create(path, 2 * _PAGE_BYTES).close()
            files.sync_directory(root)
        self._turn = 0
        self.seq = 0
        self._file = files.open(path, writable=writable) if path.exists() else None
        for page in range(2):
            raw = bytearray(_MARK.size + 8)
            if self._file is None or not self._file.read([memoryview(raw)], page * _PAGE_BYTES):
                continue
            seq = _decode(bytes(raw))
            if seq > self.seq:
                self.seq, self._turn = seq, 1 - page

    def write(self, seq: int) -> None:
        """All that was written up to `seq` has been synced. Raises OSError."""
        if self._file is not None and seq > self.seq:
            fields = _MARK.pack(_MAGIC, seq)
            raw = memoryview(fields + xxhash.xxh3_64_digest(fields))
            self._file.write([raw], self._turn * _PAGE_BYTES)
            self.seq, self._turn = seq, 1 - self._turn

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _decode(raw: bytes) -> int:
    fields, digest = raw[: _MARK.size], raw[_MARK.size :]
    magic, seq = _MARK.unpack(fields)
    return seq if magic == _MAGIC and xxhash.xxh3_64_digest(fields) == digest else 0
