"""Writers of a directory that are killed at any moment: each block is there and right, or absent."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.blocks import SIZE, keys, read

from dualpath.kvstore.api import ReadStatus
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.kvstore.directory.survey import verify_directory
from dualpath.lanes.nic import PacedNic
from dualpath.telemetry.leash import leashed

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.support.blocks import SIZE, write
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.lanes.nic import PacedNic

async def main():
    store = DirectoryStore(Path(sys.argv[1]), fingerprint="model", block_bytes=SIZE, nic=PacedNic("nic"),
                           options=DirectoryOptions(capacity_bytes=200_000_000))
    await store.start()
    number = int(sys.argv[2])
    while True:
        (status,) = await write(store, number)
        if status == 0:
            print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def killed_writer(root: Path, first: int, blocks: int) -> list[int]:
    """Blocks that a process said were stored, from number `first` on, before it was killed."""
    writer = subprocess.Popen(
        leashed([sys.executable, "-c", PROGRAM, str(root), str(first)]),
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        said = [int(writer.stdout.readline()) for _ in range(blocks)]
        writer.kill()
        return said + [int(line) for line in writer.stdout.read().splitlines() if line]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_sigkill_at_any_moment_leaves_right_blocks_or_none(tmp_path: Path) -> None:
    source, root = random.Random(1), tmp_path / "blocks"
    for life in range(8):
        stored = await asyncio.to_thread(
            killed_writer, root, life * 1_000_000, source.randrange(3, 30)
        )
        assert all(checked.right for checked in verify_directory(root))
        store = DirectoryStore(
            root, fingerprint="model", block_bytes=SIZE, nic=PacedNic("nic"), keeps=False
        )
        assert await read(store, *stored) == [ReadStatus.FOUND] * len(stored)
        assert (await store.match(keys(*stored))).blocks == len(stored)
        await store.close()
