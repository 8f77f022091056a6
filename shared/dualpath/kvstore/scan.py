"""What a store's directory holds when it is opened. Blocking calls, for threads."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from dualpath.kvstore.blockfile import HEADER_BYTES
from dualpath.kvstore.index import BlockName

_NAMESPACE_DIR = re.compile(r"[0-9a-f]{16}-([0-9]+)\Z")
_BLOCK_FILE = re.compile(r"([0-9a-f]{32})\.kv\Z")


@dataclass
class Scan:
    """Blocks with the time of their file (ns) and its bytes, and files that are no whole block."""

    blocks: list[tuple[int, BlockName, int]] = field(default_factory=list)
    wrong_size: list[Path] = field(default_factory=list)


def scan_blocks(root: Path) -> Scan:
    """All block files below `root`; other files are nobody's business. Raises OSError."""
    scan = Scan()
    with os.scandir(root) as entries:
        for entry in entries:
            if (match := _NAMESPACE_DIR.match(entry.name)) and entry.is_dir():
                _scan_namespace(Path(entry.path), HEADER_BYTES + int(match[1]), scan)
    return scan


def _scan_namespace(directory: Path, file_bytes: int, scan: Scan) -> None:
    for fan in os.scandir(directory):
        if len(fan.name) != 2 or not fan.is_dir():
            continue
        for entry in os.scandir(fan.path):
            match = _BLOCK_FILE.match(entry.name)
            if match is None:
                continue
            stat = entry.stat()
            if stat.st_size == file_bytes:
                name = BlockName(directory.name, bytes.fromhex(match[1]))
                scan.blocks.append((stat.st_mtime_ns, name, file_bytes))
            else:
                scan.wrong_size.append(Path(entry.path))
