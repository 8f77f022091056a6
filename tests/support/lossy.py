"""A disk that forgets: on a power loss, what was not synced is there, not there, or there in parts."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from dualpath.kvstore.files import DiskFile, DiskFiles, Views


class LossyFile(DiskFile):
    """Remembers, for each piece of the file that was written since the last sync, what it was before each write."""

    def __init__(self, disk: LossyFiles, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self._disk = disk

    def write(self, views: Views, offset: int) -> None:
        nbytes = sum(len(view) for view in views)
        grain, unsynced = self._disk.grain, self._disk.unsynced[self.path]
        for piece in range(offset // grain, -(-(offset + nbytes) // grain)):
            before = bytearray(grain)
            super().read([memoryview(before)], piece * grain)
            unsynced[piece].append(bytes(before))
        super().write(views, offset)

    def sync(self) -> None:
        self._disk.syncs += 1
        self._disk.unsynced.pop(self.path, None)


class LossyFiles(DiskFiles):
    """Real files, and their past. `grain`: bytes that are written whole or not at all."""

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self.syncs = 0
        self.unsynced: defaultdict[Path, defaultdict[int, list[bytes]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._unnamed: set[Path] = set()
        self._unremoved: dict[Path, bytes] = {}

    def create(self, path: Path, nbytes: int) -> DiskFile:
        file = super().create(path, nbytes)
        self._unnamed.add(path)
        return file

    def open(self, path: Path, *, writable: bool = True, direct: bool = False) -> DiskFile:
        made = super().open(path, writable=writable, direct=direct)
        flags = 2 if writable else 0
        made.close()
        return LossyFile(self, path, flags)

    def remove(self, path: Path) -> None:
        if path.exists():
            self._unremoved[path] = path.read_bytes()
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._unnamed = {file for file in self._unnamed if file.parent != path}
        for file in [file for file in self._unremoved if file.parent == path]:
            del self._unremoved[file]

    def power_loss(self, source: random.Random) -> int:
        """The disk as it might be found afterwards; how many pieces are not what was written last. Close all
        files before."""
        lost = 0
        for path in self._unnamed:
            if source.random() < 0.5:
                path.unlink(missing_ok=True)
        for path, content in self._unremoved.items():
            if source.random() < 0.5:
                path.write_bytes(content)
        for path, pieces in self.unsynced.items():
            if not path.exists():
                continue
            with path.open("r+b") as file:
                size = path.stat().st_size
                for piece, versions in pieces.items():
                    at = source.randrange(len(versions) + 1)
                    if at < len(versions) and piece * self.grain < size:
                        file.seek(piece * self.grain)
                        file.write(versions[at][: size - piece * self.grain])
                        lost += 1
        self.unsynced.clear()
        self._unnamed.clear()
        self._unremoved.clear()
        return lost
