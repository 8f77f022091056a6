"""Where things lie in a directory of blocks.

keeper.lock                        held by the process that makes room
census.json                        what the keeper has counted, and how much each client may write
clients/ID                         what each client has written
NAMESPACE/namespace.json           fingerprint and block size
NAMESPACE/blocks/AB/ABCD…          a block and its trailer; the name is its key
NAMESPACE/aside/ABCD…              a damaged block, for whoever looks into it
NAMESPACE/incoming/…               files that are being written
NAMESPACE/pins/EXPIRY-ID           keys that are under a lease
NAMESPACE/doomed                   keys that the keeper is about to remove
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from dualpath.blocks.keys import KEY_BYTES
from dualpath.kvstore.disk import namespace_dir
from dualpath.kvstore.sealed import TRAILER_BYTES
from dualpath.wire.store import Namespace

KEEPER_LOCK = "keeper.lock"
_PAGE = 4096
_SPACE = re.compile(r"[0-9a-f]{16}-[0-9]{1,12}")
"""See `disk.namespace_dir`."""


class Space:
    """The paths of one namespace."""

    def __init__(self, root: Path, name: str) -> None:
        """`name` is that of the namespace's directory."""
        self.root = root
        self.name = name
        self.path = root / name
        self.block_bytes = int(name.rpartition("-")[2])
        self.file_bytes = self.block_bytes + TRAILER_BYTES
        self.blocks = self.path / "blocks"
        self.aside = self.path / "aside"
        self.incoming = self.path / "incoming"
        self.pins = self.path / "pins"
        self.doomed = self.path / "doomed"
        self._blocks = str(self.blocks)

    def make(self, namespace: Namespace) -> None:
        """Make what is missing. Raises OSError."""
        for path in (self.blocks, self.aside, self.incoming, self.pins):
            path.mkdir(parents=True, exist_ok=True)
        description = self.path / "namespace.json"
        if not description.exists():
            replace_file(description, self.incoming, msgspec.json.encode(namespace))

    def block(self, key: bytes) -> str:
        """The file of a block; a string, for there are many."""
        name = key.hex()
        return f"{self._blocks}/{name[:2]}/{name}"

    def new_file(self) -> Path:
        """A name that nobody else takes."""
        return self.incoming / secrets.token_hex(12)

    def fingerprint(self) -> str:
        """Whose blocks these are, or "?" where that is lost."""
        try:
            raw = (self.path / "namespace.json").read_bytes()
            return msgspec.json.decode(raw, type=Namespace).fingerprint
        except (OSError, msgspec.DecodeError):
            return "?"


def space_of(root: Path, namespace: Namespace) -> Space:
    return Space(root, namespace_dir(namespace))


def spaces_in(root: Path) -> list[Space]:
    """The namespaces that a directory has. Raises OSError."""
    names = []
    for entry in os.scandir(root):
        # Others may keep things beside: what is none of ours is not counted, and never removed.
        if _SPACE.fullmatch(entry.name) and entry.is_dir():
            names.append(entry.name)
    return [Space(root, name) for name in sorted(names)]


def holds_store(root: Path) -> bool:
    """Whether a directory has ever been a store of this layout. Raises OSError."""
    return (root / KEEPER_LOCK).exists() or any(space.blocks.is_dir() for space in spaces_in(root))


def key_of(name: str) -> bytes | None:
    """The key that a file is named by; None for a file that is none of ours."""
    try:
        key = bytes.fromhex(name)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


def taken_bytes(file_bytes: int) -> int:
    """What a file takes of the disk."""
    return -(-file_bytes // _PAGE) * _PAGE


def replace_file(path: Path, beside: Path, data: bytes) -> None:
    """Put `data` in the place of a file, whole or not at all; `beside` is a directory of the same file system."""
    new = beside / f"{path.name}.{secrets.token_hex(8)}"
    try:
        new.write_bytes(data)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def each(paths: Path, do: Callable[[os.DirEntry[str]], None]) -> None:
    """Call `do` for every entry of a directory; none where there is no directory. What vanishes meanwhile is left
    out."""
    try:
        entries = os.scandir(paths)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            try:
                do(entry)
            except FileNotFoundError:
                continue
