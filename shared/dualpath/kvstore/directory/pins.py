"""Leases without a server: files that say what must not be removed yet. Blocking calls, for threads.

Whoever takes a lease writes a pin, and then looks what is doomed. Whoever removes blocks says what is doomed, and
then looks what is pinned. So where each sees at once what the other has written, one of them gives way: a block that
was matched under a lease stays.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from dualpath.blocks.keys import KEY_BYTES, pack_keys, unpack_keys
from dualpath.kvstore.directory.layout import Space, each, replace_file


def pin(space: Space, keys: Sequence[bytes], lease_s: float) -> Path:
    """Hold blocks for `lease_s` seconds by this machine's clock. Raises OSError."""
    expires_ms = int(1000 * (time.time() + lease_s))
    path = space.pins / f"{expires_ms}-{secrets.token_hex(8)}"
    replace_file(path, space.incoming, pack_keys(keys))
    return path


def unpin(path: Path) -> None:
    path.unlink(missing_ok=True)


def pinned(space: Space) -> set[bytes]:
    """Keys under a lease. Pins that have expired are removed. Raises OSError."""
    keys: set[bytes] = set()
    now_ms = 1000 * time.time()

    def look(entry: os.DirEntry[str]) -> None:
        expires, _, _ = entry.name.partition("-")
        if expires.isdecimal() and int(expires) > now_ms:
            keys.update(_keys(Path(entry.path)))
        else:
            unpin(Path(entry.path))

    each(space.pins, look)
    return keys


def doom(space: Space, keys: Iterable[bytes]) -> None:
    """Say that these blocks are about to be removed. Raises OSError."""
    replace_file(space.doomed, space.incoming, pack_keys(list(keys)))


def pardon(space: Space) -> None:
    """Nothing is doomed any more."""
    space.doomed.unlink(missing_ok=True)


def doomed(space: Space) -> set[bytes]:
    """Keys that may vanish at any moment. Raises OSError."""
    try:
        return set(_keys(space.doomed))
    except FileNotFoundError:
        return set()


def _keys(path: Path) -> list[bytes]:
    """Raises FileNotFoundError. A file that is none of ours names nothing."""
    raw = path.read_bytes()
    return [] if len(raw) % KEY_BYTES else unpack_keys(raw)
