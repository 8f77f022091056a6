"""The processes of a host have the weights of a checkpoint in memory once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.checkpoints import write_checkpoint

from dualpath.telemetry.leash import leashed

pytestmark = pytest.mark.slow
"""Three times the seconds that loading torch takes."""

HOLD = Path(__file__).parents[2] / "support" / "hold_model.py"


@contextmanager
def holders(directory: Path, dtype: str, count: int) -> Iterator[list[tuple[int, int]]]:
    """So many processes that hold the model: process id, and by how much its own memory grew."""
    command = leashed([sys.executable, str(HOLD), str(directory), dtype])
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        found = []
        for process in processes:
            assert process.stdout is not None
            found.append((process.pid, int(process.stdout.readline())))
        yield found
    finally:
        for process in processes:
            process.communicate("")


def mapped_kib(pid: int, directory: Path) -> dict[str, int]:
    """What /proc says of the pages of the directory's files in one process, summed by name."""
    sums = {"Rss": 0, "Pss": 0, "Anonymous": 0}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = f"{directory}/" in line
            continue
        name, _, rest = line.partition(":")
        if inside and name in sums:
            sums[name] += int(rest.split()[0])
    return sums


def test_two_processes_map_one_copy_of_the_weights(tmp_path: Path) -> None:
    """Experts' too, which the model's code would pack into tensors of its own."""
    directory = tmp_path / "mixtral"
    directory.mkdir()
    write_checkpoint(directory, "mixtral", files=2, hidden_size=512, intermediate_size=1024)
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    assert size > 24 << 20
    with holders(directory, "float32", 2) as found:
        for pid, grown in found:
            pages = mapped_kib(pid, directory)
            assert pages["Rss"] << 10 > 0.8 * size, "the weights are in memory"
            assert pages["Pss"] << 10 < 0.6 * size, "half of each page counts for each process"
            assert pages["Anonymous"] == 0, "no page was copied"
            assert grown < size / 2, "nor are there copies elsewhere"


def test_another_dtype_costs_a_copy_but_not_two(tmp_path: Path) -> None:
    directory = tmp_path / "mixtral"
    directory.mkdir()
    write_checkpoint(directory, "mixtral", hidden_size=512, intermediate_size=1024)
    size = (directory / "model.safetensors").stat().st_size
    with holders(directory, "bfloat16", 1) as [(pid, grown)]:
        assert 0.4 * size < grown < 0.75 * size
        assert mapped_kib(pid, directory)["Rss"] == 0, "the file is not kept mapped"
