"""`dualpath store` on the directories of shards."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.stored import flip, where
from typer.testing import CliRunner

from dualpath.cli.main import app
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions, DiskStore, namespace_dir
from dualpath.kvstore.putting import NewBlock
from dualpath.wire.store import Namespace

SPACES = [Namespace("model-a", 5000), Namespace("model-b", 100)]


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@dataclass
class Shown:
    returncode: int
    stdout: str
    stderr: str


def store(home: Path, *arguments: str) -> Shown:
    result = CliRunner().invoke(app, ["store", *arguments, "--home", str(home)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Shown(result.exit_code, result.stdout, result.stderr)


def spaces(home: Path) -> dict[tuple[str, str], dict[str, object]]:
    shown = store(home, "stat", "--json")
    assert shown.returncode == 0, shown.stderr
    return {(line["shard"], line["fingerprint"]): line for line in json.loads(shown.stdout)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two shards, each with ten blocks of two models."""
    for number in range(2):
        asyncio.run(fill(tmp_path / "store" / f"storage-{number}"))
    return tmp_path


async def fill(root: Path) -> None:
    disk = DiskStore(root, DiskOptions(extent_bytes=4 * 8192))
    await disk.open()
    for namespace in SPACES:
        data = memoryview(bytes(namespace.block_bytes))
        await disk.write(
            namespace,
            [NewBlock(key(n), block_checksum(key(n), data), n, data) for n in range(10)],
        )
    await disk.close()


def test_stat_tells_blocks_and_bytes_by_shard_and_model(home: Path) -> None:
    found = spaces(home)
    assert set(found) == {(f"storage-{n}", f"model-{m}") for n in range(2) for m in "ab"}
    one = found["storage-0", "model-a"]
    assert (one["blocks"], one["block_bytes"], one["aside"]) == (10, 5000, 0)
    shown = store(home, "stat")
    assert "model-a" in shown.stdout
    assert "storage-1" in shown.stdout


def test_verify_names_damaged_blocks_and_only_these(home: Path) -> None:
    well = store(home, "verify")
    assert well.returncode == 0
    assert "40 blocks verified, 0 damaged" in well.stdout
    flip(*where(home / "store" / "storage-1", namespace_dir(SPACES[0]), key(3)))
    damaged = store(home, "verify")
    assert damaged.returncode == 1
    assert "40 blocks verified, 1 damaged" in damaged.stdout
    assert key(3).hex() in damaged.stdout
    assert store(home, "verify", "--shard", "storage-0").returncode == 0


def test_stat_and_verify_work_beside_a_shard_and_changes_are_refused(home: Path) -> None:
    async def beside() -> None:
        disk = DiskStore(home / "store" / "storage-0")
        await disk.open()
        try:
            assert (await asyncio.to_thread(store, home, "verify")).returncode == 0
            for command in (("gc",), ("drop", "--all")):
                refused = await asyncio.to_thread(store, home, *command)
                assert refused.returncode == 2
                assert "in use by process" in refused.stderr
        finally:
            await disk.close()

    asyncio.run(beside())
    assert len(spaces(home)) == 4


def test_drop_removes_one_models_blocks_or_all(home: Path) -> None:
    assert "say whose blocks" in store(home, "drop").stderr
    nothing = store(home, "drop", "model-c")
    assert ("store stat" in nothing.stderr, nothing.stdout) == (True, "")
    both = store(home, "drop", "model-a", "--all")
    assert both.returncode == 2
    assert "not only of model-a" in both.stderr
    assert len(spaces(home)) == 4
    assert store(home, "drop", "model-a", "--shard", "storage-1").returncode == 0
    assert set(spaces(home)) == {
        ("storage-0", "model-a"), ("storage-0", "model-b"), ("storage-1", "model-b"),
    }  # fmt: skip
    assert "40" not in store(home, "verify").stdout.split("blocks")[0]
    assert store(home, "drop", "--all").returncode == 0
    assert spaces(home) == {}
    assert not list(home.glob("store/*/*-*"))


def test_a_store_without_blocks_says_so(tmp_path: Path) -> None:
    (tmp_path / "store" / "storage-0").mkdir(parents=True)
    assert store(tmp_path, "stat").stdout == "no blocks are kept yet\n"


def test_gc_gives_back_what_nobody_needs(home: Path) -> None:
    assert "0 B given back, 20 blocks left" in store(home, "gc", "--shard", "storage-0").stdout
    old = store(home, "gc", "--shard", "storage-0", "--unused-s", "0")
    assert ", 0 blocks left" in old.stdout
    assert not list(home.glob("store/storage-0/*-*/*.slots"))
    assert spaces(home)["storage-0", "model-a"]["blocks"] == 0
    assert spaces(home)["storage-1", "model-a"]["blocks"] == 10


def test_without_a_store_it_says_where_it_has_looked(tmp_path: Path) -> None:
    for command in ("stat", "verify", "gc"):
        shown = store(tmp_path, command)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert f"there is no store of any shard in {tmp_path / 'store'}" in shown.stderr
