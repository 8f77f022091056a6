"""How a directory of blocks is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DirectoryOptions:
    """How a directory is used."""

    threads: int = 8
    """File operations of this process at a time."""
    fsync: bool = False
    """A block counts as stored only when it would survive a power loss."""
    capacity_bytes: int | None = None
    """All files of the directory take this at most."""
    ttl_s: float | None = None
    """Blocks that nobody used for so long are removed."""
