"""One block in one file: a header, then the block's bytes. Blocking calls, for threads.

Header, 64 bytes little-endian: magic, version, header bytes, key, block bytes, checksum, and a digest of
all these. A file gets its name only when it is complete, so it is there whole or not at all; what a
power loss or the disk itself does to it, the checksum shows.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import xxhash

from dualpath.kvstore.checksum import block_checksum

_HEADER = struct.Struct("<8sII16sQ16s")
_DIGEST_BYTES = 8
_MAGIC = b"DUALPATH"
_VERSION = 1
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES


class CorruptBlock(Exception):
    """The file is not the block that it should be; `inode` tells which file that was."""

    def __init__(self, what: str, inode: int) -> None:
        super().__init__(what)
        self.inode = inode


def encode_header(key: bytes, block_bytes: int, checksum: bytes) -> bytes:
    fields = _HEADER.pack(_MAGIC, _VERSION, HEADER_BYTES, key, block_bytes, checksum)
    return fields + xxhash.xxh3_64_digest(fields)


def check_header(header: bytes | bytearray, key: bytes, block_bytes: int) -> bytes:
    """The checksum that the header states; raises ValueError saying what is wrong with it."""
    fields, digest = bytes(header[: _HEADER.size]), bytes(header[_HEADER.size :])
    if xxhash.xxh3_64_digest(fields) != digest:
        raise ValueError("its header is damaged")
    magic, version, size, stated_key, stated_bytes, checksum = _HEADER.unpack(fields)
    if (magic, version, size) != (_MAGIC, _VERSION, HEADER_BYTES):
        raise ValueError(f"its header is of another format (version {version})")
    if stated_key != key:
        raise ValueError(f"it holds block {stated_key.hex()}")
    if stated_bytes != block_bytes:
        raise ValueError(f"it holds a block of {stated_bytes} bytes, not {block_bytes}")
    return bytes(checksum)


def read_block(path: Path, key: bytes, into: memoryview) -> bytes:
    """Read a block into `into` and return its checksum, verified.

    Raises CorruptBlock where the file is not this block, FileNotFoundError and other OSErrors as they come.
    """
    header = bytearray(HEADER_BYTES)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = os.fstat(fd)
        if stat.st_size != HEADER_BYTES + len(into):
            raise CorruptBlock(
                f"it has {stat.st_size} bytes, not {HEADER_BYTES + len(into)}", stat.st_ino
            )
        if not _read_fully(fd, [memoryview(header), into]):
            raise CorruptBlock("it ends too early", stat.st_ino)
    finally:
        os.close(fd)
    try:
        checksum = check_header(header, key, len(into))
    except ValueError as error:
        raise CorruptBlock(str(error), stat.st_ino) from error
    if block_checksum(key, into) != checksum:
        raise CorruptBlock("its bytes do not match its checksum", stat.st_ino)
    return checksum


def write_block(
    temporary: Path, key: bytes, checksum: bytes, block: memoryview, *, fsync: bool
) -> None:
    """Write a block under a temporary name, in the file system where it will stay; raises OSError.

    The caller gives it its name (`publish`), or removes it.
    """
    header = memoryview(encode_header(key, len(block), checksum))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_fully(fd, [header, block])
        if fsync:
            os.fsync(fd)
    finally:
        os.close(fd)


def publish(temporary: Path, path: Path, *, fsync: bool) -> None:
    """Give a complete file its name; with `fsync` the name is on the disk when this returns."""
    try:
        os.rename(temporary, path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        if fsync:
            sync_directory(path.parent.parent)
        os.rename(temporary, path)
    if fsync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_fully(fd: int, views: list[memoryview]) -> bool:
    """Fill `views` from the start of the file; False where it ends before."""
    offset = 0
    while views:
        count = os.preadv(fd, views, offset)
        if count == 0:
            return False
        offset += count
        views = _after(views, count)
    return True


def _write_fully(fd: int, views: list[memoryview]) -> None:
    while views:
        views = _after(views, os.writev(fd, views))


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What remains of `views` after their first `count` bytes."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
