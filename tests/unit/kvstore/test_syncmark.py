from __future__ import annotations

import random
from pathlib import Path

from tests.support.lossy import LossyFiles

from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.syncmark import SyncMark


def mark_in(root: Path) -> int:
    mark = SyncMark(DiskFiles(), root)
    mark.close()
    return mark.seq


def test_a_mark_is_found_again_and_never_goes_back(tmp_path: Path) -> None:
    assert mark_in(tmp_path) == 0
    for seq, found in ((5, 5), (9, 9), (7, 9), (12, 12)):
        mark = SyncMark(DiskFiles(), tmp_path)
        mark.write(seq)
        mark.close()
        assert mark_in(tmp_path) == found


def test_a_torn_mark_leaves_the_one_before(tmp_path: Path) -> None:
    mark = SyncMark(DiskFiles(), tmp_path)
    mark.write(5)
    mark.write(6)
    mark.close()
    raw = bytearray((tmp_path / "synced").read_bytes())
    raw[4096 + 8] ^= 1
    (tmp_path / "synced").write_bytes(raw)
    assert mark_in(tmp_path) == 5


def test_after_a_power_loss_a_mark_is_one_of_those_written(tmp_path: Path) -> None:
    disk, source, seq = LossyFiles(4), random.Random(1), 0
    for _ in range(50):
        mark = SyncMark(disk, tmp_path)
        assert mark.seq <= seq
        for _ in range(source.randrange(4)):
            seq += source.randrange(1, 1000)
            mark.write(seq)
        mark.close()
        disk.power_loss(source)


def test_garbage_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / "synced").write_bytes(random.Random(1).randbytes(8192))
    assert mark_in(tmp_path) == 0
    (tmp_path / "synced").write_bytes(b"")
    assert mark_in(tmp_path) == 0
