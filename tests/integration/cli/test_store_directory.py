"""`dualpath store` on a directory of blocks that no shard serves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.blocks import SIZE, keys, write
from typer.testing import CliRunner, Result

from dualpath.cli.main import app
from dualpath.kvstore.directory.keeper import KeeperLock
from dualpath.kvstore.directory.layout import space_of
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.lanes.nic import PacedNic
from dualpath.wire.store import Namespace


def store(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["store", *arguments, "--directory", str(root)])


def spaces(root: Path) -> dict[str, int]:
    return {
        line["fingerprint"]: line["blocks"]
        for line in json.loads(store(root, "stat", "--json").stdout)
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six blocks of each of two models."""

    async def fill() -> None:
        for model in ("model-a", "model-b"):
            blocks = DirectoryStore(
                tmp_path / "kv", fingerprint=model, block_bytes=SIZE, nic=PacedNic("nic")
            )
            await blocks.start()
            await write(blocks, *range(6))
            await blocks.close()

    asyncio.run(fill())
    return tmp_path / "kv"


def test_stat_and_verify_tell_what_is_there_and_what_is_damaged(root: Path) -> None:
    assert spaces(root) == {"model-a": 6, "model-b": 6}
    assert store(root, "verify").exit_code == 0
    path = Path(space_of(root, Namespace("model-a", SIZE)).block(keys(3)[0]))
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    damaged = store(root, "verify")
    assert (damaged.exit_code, keys(3)[0].hex() in damaged.stdout) == (1, True)


def test_changes_are_refused_while_somebody_keeps_the_directory(root: Path) -> None:
    lock = KeeperLock(root)
    assert lock.acquire()
    for command in (("gc",), ("drop", "--all")):
        refused = store(root, *command)
        assert refused.exit_code == 2
        assert "stop the clusters that use it" in refused.stderr
    lock.close()
    assert store(root, "gc").exit_code == 0
    assert store(root, "drop", "model-a").exit_code == 0
    assert spaces(root) == {"model-b": 6}
    assert store(root, "gc", "--unused-s", "0").exit_code == 0
    assert spaces(root) == {"model-b": 0}


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = store(tmp_path / "nowhere", "stat")
    assert (told.exit_code, "there is no directory" in told.stderr) == (2, True)


@pytest.mark.parametrize("command", [("stat",), ("verify",), ("gc",), ("drop", "--all")])
def test_a_directory_that_is_no_store_is_told_and_left_as_it_is(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "0123456789abcdef-4096").mkdir()
    told = store(tmp_path, *command)
    assert (told.exit_code, "is not a directory of blocks" in told.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["0123456789abcdef-4096"]
