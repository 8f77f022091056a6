"""Where the blocks of a store lie on the disk, for tests that damage them."""

from __future__ import annotations

from pathlib import Path

from dualpath.kvstore.entry import State, Table
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.index import MAX_SLOTS, SLOT_BITS


def stored(root: Path, state: State = State.STORED) -> dict[tuple[str, bytes], tuple[Path, int]]:
    """Namespace directory and key → file and offset, of every block in the tables below `root`."""
    found = {}
    for table in root.rglob("*.table"):
        first = int(table.stem) << SLOT_BITS
        slot_bytes = slot_bytes_of(int(table.parent.name.rpartition("-")[2]))
        for slot, entry in Table(first, table.read_bytes()):
            if entry.state is state:
                place = (table.with_suffix(".slots"), (slot & (MAX_SLOTS - 1)) * slot_bytes)
                found[table.parent.name, entry.key] = place
    return found


def where(root: Path, space: str, key: bytes) -> tuple[Path, int]:
    """File and offset of one block."""
    return stored(root)[space, key]


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
