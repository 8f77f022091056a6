"""Looking at a store's directory from outside, also while a shard works on it. Blocking calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.extent import Extent
from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.index import SLOT_BITS
from dualpath.kvstore.recovery import RecoveredSpace, recover
from dualpath.kvstore.volume import allocated_bytes
from dualpath.wire.store import Namespace

_ALL = 1 << 64


@dataclass(frozen=True)
class SpaceStat:
    """One namespace of one store."""

    name: str
    fingerprint: str
    block_bytes: int
    blocks: int
    aside: int
    allocated_bytes: int
    touched: tuple[float, float] | None
    """When its blocks were stored, the first and the last; seconds since the epoch."""


@dataclass(frozen=True)
class Checked:
    """A block that was read, and whether it is right."""

    space: str
    key: bytes
    nbytes: int
    right: bool


class Survey:
    """What a store held when the survey was made. Close it, or use it as a context."""

    def __init__(self, root: Path) -> None:
        """Raises OSError, FileNotFoundError where there is no store."""
        self.root = root
        self._spaces = recover(root, DiskFiles(), _ALL, writable=False).spaces

    def stat(self) -> list[SpaceStat]:
        return [self._stat(space) for space in self._spaces]

    def keys(self) -> list[tuple[Namespace, bytes]]:
        """Every block that is there."""
        return [
            (Namespace(_fingerprint(self.root / space.name), space.block_bytes), key)
            for space in self._spaces
            for key in space.stored.keys
        ]

    def __len__(self) -> int:
        return sum(len(space.stored.keys) for space in self._spaces)

    def verify(self) -> Iterator[Checked]:
        """Read every block and compare it with its checksum, in the order in which they lie on the disk.

        One whose slot has been given to another meanwhile is not reported. Raises OSError for a disk that
        cannot be read.
        """
        for space in self._spaces:
            block = memoryview(bytearray(space.block_bytes))
            stored = space.stored
            for index in sorted(range(len(stored.keys)), key=stored.slots.__getitem__):
                slot, key = stored.slots[index], stored.keys[index]
                extent, checksum = space.extents[slot >> SLOT_BITS], stored.rows["checksum"][index]
                right = extent.read(slot, block) and (
                    block_checksum(key, block) == checksum.tobytes()
                )
                if right or _still_there(extent, slot, int(stored.rows["seq"][index])):
                    yield Checked(space.name, key, space.block_bytes, right)

    def close(self) -> None:
        for space in self._spaces:
            for extent in space.extents.values():
                extent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _stat(self, space: RecoveredSpace) -> SpaceStat:
        times = space.stored.rows["touched"]
        slots = sum(extent.slots for extent in space.extents.values())
        return SpaceStat(
            space.name,
            _fingerprint(self.root / space.name),
            space.block_bytes,
            len(space.stored.keys),
            len(space.aside),
            allocated_bytes(slots, space.block_bytes),
            (float(times.min()), float(times.max())) if len(times) else None,
        )


def _still_there(extent: Extent, slot: int, seq: int) -> bool:
    return any(at == slot and entry.seq == seq for at, entry in extent.table())


def _fingerprint(directory: Path) -> str:
    """The fingerprint of a namespace, or "?" where its description is lost."""
    try:
        raw = (directory / "namespace.json").read_bytes()
        return msgspec.json.decode(raw, type=Namespace).fingerprint
    except (OSError, msgspec.DecodeError):
        return "?"
