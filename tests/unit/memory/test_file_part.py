from __future__ import annotations

from pathlib import Path

import pytest

from dualpath.memory.file_part import FilePart

DATA = bytes(range(100))


@pytest.mark.parametrize(
    "cut", [slice(None), slice(7, None), slice(0, 5), slice(3, 9), slice(45, 200), slice(9, 3)]
)
def test_a_part_is_sliced_as_its_bytes_are(tmp_path: Path, cut: slice) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        part = FilePart(file.fileno(), 20, 50)
        assert bytes(part[cut]) == DATA[20:70][cut]
        assert len(part[cut]) == len(DATA[20:70][cut])


def test_a_part_beyond_the_files_end_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="ends 20 bytes"):
        bytes(FilePart(file.fileno(), 70, 50))


def test_parts_have_no_steps() -> None:
    with pytest.raises(ValueError, match="no steps"):
        FilePart(0, 0, 10)[::2]
