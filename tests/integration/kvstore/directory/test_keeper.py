"""What the keeper of a directory must get right when others are slow, have died, or keep their own things there."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.blocks import SIZE, keys, write

from dualpath.kvstore.api import WriteStatus
from dualpath.kvstore.directory.budget import Budget
from dualpath.kvstore.directory.census import Holdings
from dualpath.kvstore.directory.keeper import Keeper, read_census
from dualpath.kvstore.directory.layout import space_of, taken_bytes
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.pins import doom
from dualpath.kvstore.directory.store import DirectoryStore
from dualpath.kvstore.directory.survey import (
    collect_directory,
    drop_directory,
    verify_directory,
)
from dualpath.lanes.nic import PacedNic
from dualpath.wire.store import Namespace

NAMESPACE = Namespace("model", SIZE)


def client(root: Path, capacity_bytes: int | None = None) -> DirectoryStore:
    return DirectoryStore(
        root,
        fingerprint="model",
        block_bytes=SIZE,
        nic=PacedNic("nic"),
        options=DirectoryOptions(capacity_bytes=capacity_bytes),
    )


class Writer:
    """A client as the keeper sees it: a budget, and the file in which it reports."""

    def __init__(self, root: Path, name: str) -> None:
        self.budget = Budget(limited=True)
        self._root, self._name, self._beat = root, name, 0

    def report(self) -> None:
        self._beat += 1
        path = self._root / "clients" / self._name
        path.write_bytes(msgspec.json.encode(self.budget.report(self._beat, 4096)))

    def hear(self) -> None:
        census = read_census(self._root)
        assert census is not None
        self.budget.limit_bytes = census.limits[self._name]
        self.budget.census = census.number

    def fill(self, most: int = 1000) -> int:
        """Store until there is no room; how many blocks those were."""
        stored = 0
        while stored < most and self.budget.reserve(4096):
            self.budget.settle(4096, stored=True)
            stored += 1
        return stored


def test_who_fills_its_room_before_it_hears_of_more_gets_more_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    keeper = Keeper(tmp_path, 1_000_000, None)
    busy, late = Writer(tmp_path, "busy"), Writer(tmp_path, "late")

    def turn() -> None:
        keeper._next_s = 0.0
        keeper.turn()

    def all_report() -> None:
        busy.report()
        late.report()

    all_report()
    turn()
    busy.hear()
    late.hear()
    busy.fill(5)
    all_report()
    turn()
    # It writes all that it may while blocks are counted for the second time, and reports without knowing of that.
    assert late.fill() > 0
    late.report()
    turn()
    late.hear()
    assert late.fill() == 0
    late.report()
    turn()
    late.hear()
    assert late.fill() > 0
    keeper.close()


async def test_what_a_dead_keeper_doomed_is_found_again(tmp_path: Path) -> None:
    dead = client(tmp_path)
    await dead.start()
    assert await write(dead, 0, 1, 2) == [WriteStatus.STORED] * 3
    doom(space_of(tmp_path, NAMESPACE), keys(1))
    await dead.close()
    store = client(tmp_path)
    await store.start()
    assert (await store.match(keys(0, 1, 2))).blocks == 3
    await store.close()


async def test_what_others_keep_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    store = client(tmp_path, 1_000_000)
    await store.start()
    assert await write(store, 0) == [WriteStatus.STORED]
    space = space_of(tmp_path, NAMESPACE)
    (space.blocks / "stray").write_text("a file where only directories are")
    theirs = tmp_path / "backup-2024"
    for name in ("blocks", "incoming", "pins"):
        (theirs / name).mkdir(parents=True)
        (theirs / name / "mine").write_text("not a block")
    # Blocks are counted, and room is shared out, in spite of the stray file.
    assert Holdings(tmp_path).nbytes == taken_bytes(space.file_bytes)
    assert (await store.stat()).blocks == 1
    assert [checked.right for checked in verify_directory(tmp_path)] == [True]
    await store.close()
    assert collect_directory(tmp_path, 0, None).blocks == 0
    assert drop_directory(tmp_path, None) == 1
    assert not space.path.exists()
    assert len([path for path in theirs.rglob("*") if path.is_file()]) == 3
