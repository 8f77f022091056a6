from __future__ import annotations

import asyncio
import errno
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stored import flip, stored, where
from tests.support.wait import until

from dualpath.kvstore.api import ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions, DiskStore, StoreInUse, namespace_dir
from dualpath.kvstore.entry import State
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.files import DiskFile, DiskFiles, Views
from dualpath.kvstore.index import BlockName
from dualpath.kvstore.putting import NewBlock
from dualpath.kvstore.quarantine import QUARANTINE_KEPT
from dualpath.kvstore.volume import allocated_bytes
from dualpath.wire.store import Namespace

SMALL = Namespace("model-a", 100)
OTHER = Namespace("model-b", 100)
LARGE = Namespace("model-a", 5000)
EXTENT = 4 * slot_bytes_of(5000)


@asynccontextmanager
async def opened(
    root: Path,
    *,
    held: Callable[[BlockName], bool] = lambda _: False,
    files: DiskFiles | None = None,
    **options: Any,
) -> AsyncIterator[DiskStore]:
    options = {"extent_bytes": EXTENT} | options
    store = DiskStore(root, DiskOptions(**options), held=held, files=files)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def block(namespace: Namespace, number: int) -> bytes:
    return (f"{namespace.fingerprint} {number} ".encode() * 600)[: namespace.block_bytes]


def new(namespace: Namespace, number: int, depth: int = 0) -> NewBlock:
    data = block(namespace, number)
    return NewBlock(key(number), block_checksum(key(number), data), depth, memoryview(data))


async def put(store: DiskStore, namespace: Namespace, number: int, depth: int = 0) -> WriteStatus:
    return (await store.write(namespace, [new(namespace, number, depth)]))[0]


async def get(store: DiskStore, namespace: Namespace, number: int) -> ReadStatus:
    """As a reader does: it compares, and says so where a block is damaged."""
    into = memoryview(mmap.mmap(-1, store.read_bytes(namespace)))
    status, checksum = await store.read(namespace, key(number), into)
    if status in (ReadStatus.FOUND, ReadStatus.ABSENT) and not store.options.direct:
        async with store.in_place(namespace, [key(number)]) as (stored,):
            assert (stored.status, stored.checksum) == (status, checksum)
            assert bytes(stored.data) == into[: len(stored.data)]
    if status is ReadStatus.FOUND:
        found = into[: namespace.block_bytes]
        if block_checksum(key(number), found) != checksum:
            store.suspect(namespace, [key(number)])
            await until(lambda: not store._busy)
            return ReadStatus.CORRUPT
        assert found == block(namespace, number)
    elif status is ReadStatus.CORRUPT:
        await until(lambda: not store._busy)
    return status


def there(store: DiskStore, namespace: Namespace) -> set[int]:
    present = store.present(namespace, [key(number) for number in range(100)])
    return {number for number in range(100) if present[number]}


@pytest.mark.parametrize("options", [{}, {"fsync": True}, {"direct": True}])
async def test_a_block_is_there_once_written_and_after_a_restart(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    async with opened(tmp_path, **options) as store:
        assert await get(store, SMALL, 1) is ReadStatus.ABSENT
        assert await put(store, SMALL, 1) is WriteStatus.STORED
        assert await put(store, SMALL, 1) is WriteStatus.EXISTS
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
    async with opened(tmp_path, **options) as store:
        assert store.stat() == StoreStat(1, 100)
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
        assert store.present(SMALL, [key(1), key(2)]) == b"\1\0"
        assert "checked_at_open" not in store.counters


async def test_namespaces_share_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, SMALL, 1)
        await put(store, LARGE, 1)
        await put(store, LARGE, 2)
        assert await get(store, OTHER, 1) is ReadStatus.ABSENT
        assert await get(store, LARGE, 1) is ReadStatus.FOUND
        assert store.stat(SMALL) == StoreStat(1, 100)
        assert store.stat(OTHER) == StoreStat(0, 0)
        assert store.stat() == StoreStat(3, 10_100)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "corrupt", "swap", "restart"]),
        st.sampled_from([SMALL, LARGE]),
        st.integers(0, 4),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS)
def test_it_behaves_like_a_dictionary_whatever_happens_to_the_files(
    operations: list[tuple[str, Namespace, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(against_a_dictionary(Path(directory), operations))


async def against_a_dictionary(root: Path, operations: list[tuple[str, Namespace, int]]) -> None:
    model: dict[tuple[Namespace, int], str] = {}
    options = DiskOptions(extent_bytes=EXTENT)
    store = DiskStore(root, options)
    await store.open()
    for what, namespace, number in operations:
        name = (namespace, number)
        state = model.get(name)
        if what == "put":
            expected = WriteStatus.STORED if state is None else WriteStatus.EXISTS
            assert await put(store, namespace, number) is expected
            model.setdefault(name, "found")
        elif what == "get":
            assert (await get(store, namespace, number)).name.lower() == (state or "absent")
            if state == "corrupt":
                del model[name]
        elif what == "restart":
            await store.close()
            store = DiskStore(root, options)
            await store.open()
        elif what == "corrupt" and state == "found":
            flip(*where(root, namespace_dir(namespace), key(number)))
            model[name] = "corrupt"
        elif what == "swap" and state == model.get((namespace, number + 1)) == "found":
            places = [where(root, namespace_dir(namespace), key(n)) for n in (number, number + 1)]
            contents = [path.read_bytes()[at : at + namespace.block_bytes] for path, at in places]
            for (path, at), content in zip(places, reversed(contents), strict=True):
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(content)
            model[name] = model[namespace, number + 1] = "corrupt"
    await store.close()


async def test_a_corrupt_block_is_put_aside_and_can_be_written_anew(tmp_path: Path) -> None:
    space = namespace_dir(SMALL)
    async with opened(tmp_path) as store:
        await put(store, SMALL, 1)
        flip(*where(tmp_path, space, key(1)))
        assert await get(store, SMALL, 1) is ReadStatus.CORRUPT
        assert await get(store, SMALL, 1) is ReadStatus.ABSENT
        assert list(stored(tmp_path, State.ASIDE)) == [(space, key(1))]
        assert store.counters["quarantined"] == 1
        assert await put(store, SMALL, 1) is WriteStatus.STORED
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
    async with opened(tmp_path) as store:
        assert list(stored(tmp_path, State.ASIDE)) == [(space, key(1))]
        assert await get(store, SMALL, 1) is ReadStatus.FOUND


async def test_a_block_that_was_suspected_wrongly_comes_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, SMALL, 1)
        store.suspect(SMALL, [key(1), key(2), key(1)])
        assert store.present(SMALL, [key(1)]) == b"\0"
        assert await get(store, SMALL, 1) is ReadStatus.ABSENT
        assert await put(store, SMALL, 1) is WriteStatus.EXISTS, "a writer waits for the check"
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
        assert store.counters["suspected_wrongly"] == 1


async def test_only_the_last_corrupt_blocks_are_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(QUARANTINE_KEPT + 3):
            await put(store, SMALL, number)
            flip(*where(tmp_path, namespace_dir(SMALL), key(number)))
            assert await get(store, SMALL, number) is ReadStatus.CORRUPT
        kept = {int.from_bytes(name[1], "big") for name in stored(tmp_path, State.ASIDE)}
        assert kept == set(range(3, QUARANTINE_KEPT + 3))


async def test_damaged_blocks_make_room_first(tmp_path: Path) -> None:
    async with opened(tmp_path, capacity_bytes=allocated_bytes(3, 5000)) as store:
        for number in (1, 2, 3):
            await put(store, LARGE, number)
        flip(*where(tmp_path, namespace_dir(LARGE), key(3)))
        assert await get(store, LARGE, 3) is ReadStatus.CORRUPT
        assert await put(store, LARGE, 4) is WriteStatus.STORED
        assert there(store, LARGE) == {1, 2, 4}
        assert stored(tmp_path, State.ASIDE) == {}


@pytest.mark.parametrize("what", ["slots cut", "table cut", "slots lost", "table lost"])
async def test_extents_that_were_cut_or_lost_are_no_blocks_and_no_crash(
    tmp_path: Path, what: str
) -> None:
    async with opened(tmp_path) as store:
        for number in range(6):
            await put(store, LARGE, number)
    suffix, damage = what.split()
    path = tmp_path / namespace_dir(LARGE) / f"000000.{suffix}"
    if damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    async with opened(tmp_path) as store:
        assert there(store, LARGE) == ({0, 1, 4, 5} if damage == "cut" else {4, 5})
        assert store.counters["extents_lost"] == (damage == "lost")
        for number in range(6):
            await put(store, LARGE, number)
            assert await get(store, LARGE, number) is ReadStatus.FOUND


async def test_a_file_that_is_cut_under_the_shard_is_corrupt_and_then_absent(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await put(store, LARGE, 1)
        os.truncate(tmp_path / namespace_dir(LARGE) / "000000.slots", 100)
        assert await get(store, LARGE, 1) is ReadStatus.CORRUPT
        assert await get(store, LARGE, 1) is ReadStatus.ABSENT
        assert await put(store, LARGE, 1) is WriteStatus.STORED
        assert await get(store, LARGE, 1) is ReadStatus.FOUND


async def test_swapped_tables_hold_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(8):
            await put(store, LARGE, number)
    one, two = (tmp_path / namespace_dir(LARGE) / f"00000{n}.table" for n in range(2))
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    async with opened(tmp_path) as store:
        assert there(store, LARGE) == set()


async def test_strangers_files_stay_and_a_lost_mark_has_all_checked(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, SMALL, 1)
        await put(store, SMALL, 2)
    (tmp_path / namespace_dir(SMALL) / "notes.txt").write_text("somebody's")
    (tmp_path / "synced").unlink()
    flip(*where(tmp_path, namespace_dir(SMALL), key(2)))
    async with opened(tmp_path) as store:
        assert there(store, SMALL) == {1}
        assert (store.counters["checked_at_open"], store.counters["torn_at_open"]) == (1, 1)
    assert (tmp_path / namespace_dir(SMALL) / "notes.txt").exists()


async def test_a_block_that_arrives_damaged_is_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        wrong = new(SMALL, 1)._replace(checksum=bytes(16))
        statuses = await store.write(SMALL, [wrong, new(SMALL, 2)])
        assert statuses == [WriteStatus.NOT_STORED, WriteStatus.STORED]
        assert there(store, SMALL) == {2}
        assert store.counters["arrived_damaged"] == 1


class Uncached(DiskFile):
    """A file of which the page cache holds nothing; of one block it could not even be told."""

    def read_cached(self, view: memoryview, offset: int) -> bool:
        view[:] = bytes(len(view))
        if offset:
            raise OSError(errno.EIO, "no luck")
        return False


class UncachedFiles(DiskFiles):
    def open(self, path: Path, *, writable: bool = True, direct: bool = False) -> DiskFile:
        super().open(path, writable=writable, direct=direct).close()
        return Uncached(path, os.O_RDWR if writable else os.O_RDONLY)


@pytest.mark.parametrize("files", [DiskFiles(), UncachedFiles()])
async def test_blocks_are_read_whether_the_page_cache_has_them_or_not(
    tmp_path: Path, files: DiskFiles
) -> None:
    async with opened(tmp_path, files=files) as store:
        for number in (1, 2, 3):
            assert await put(store, LARGE, number) is WriteStatus.STORED
            assert await get(store, LARGE, number) is ReadStatus.FOUND
        assert not store.counters["read_failed"]


def test_what_is_read_from_the_page_cache_is_whole_or_nothing(tmp_path: Path) -> None:
    data = os.urandom(3 * mmap.PAGESIZE)
    (tmp_path / "file").write_bytes(data)
    file = DiskFile(tmp_path / "file", os.O_RDONLY)
    try:
        into = memoryview(bytearray(2 * mmap.PAGESIZE))
        if file.read_cached(into, mmap.PAGESIZE):  # Not every file system can tell.
            assert into == data[mmap.PAGESIZE :]
        assert not file.read_cached(into, 2 * mmap.PAGESIZE)
        assert not file.read_cached(into, 3 * mmap.PAGESIZE)
    finally:
        file.close()


def drop_from_cache(root: Path) -> None:
    for path in root.glob("*/*.slots"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def test_blocks_that_are_read_in_place_are_fetched_and_nobody_writes_over_them(
    tmp_path: Path,
) -> None:
    capacity = allocated_bytes(4, 5000)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        for number in range(4):
            assert await put(store, LARGE, number) is WriteStatus.STORED
        drop_from_cache(tmp_path)
        asked = [key(0), key(99), key(2)]
        async with store.in_place(LARGE, asked, [key(3), key(98)]) as (first, absent, second):
            for number in range(10, 20):
                assert await put(store, LARGE, number) is WriteStatus.STORED
            assert bytes(first.data) == block(LARGE, 0)
            assert bytes(second.data) == block(LARGE, 2)
            assert absent.status is ReadStatus.ABSENT
            assert there(store, LARGE) >= {0, 2}
        for number in range(20, 30):
            assert await put(store, LARGE, number) is WriteStatus.STORED
        assert not there(store, LARGE) & {0, 2}


async def test_a_disk_says_how_many_blocks_it_can_give_without_waiting(tmp_path: Path) -> None:
    """One that is absent need not be waited for either."""
    async with opened(tmp_path) as store:
        for number in range(8):
            await put(store, LARGE, number)
        asked = [key(number) for number in (0, 99, 3, 4, 7)]
        assert store.cached(LARGE, asked) == 5
        first, second = store._volume._extents.values()
        os.fsync(second._slots.fd)
        os.posix_fadvise(second._slots.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert store.cached(LARGE, asked) == 3
        first._mapped = None
        assert store.cached(LARGE, asked) == 0
        assert store.cached(LARGE, [key(99)]) == 1


async def test_a_file_that_is_cut_is_corrupt_in_place_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, LARGE, 1)
        os.truncate(tmp_path / namespace_dir(LARGE) / "000000.slots", 100)
        async with store.in_place(LARGE, [key(1)]) as (found,):
            assert found.status is ReadStatus.CORRUPT
        await until(lambda: not store._busy)
        assert there(store, LARGE) == set()
        assert await put(store, LARGE, 1) is WriteStatus.STORED
        assert await get(store, LARGE, 1) is ReadStatus.FOUND


async def test_a_block_of_an_extent_that_is_not_mapped_fails_in_place_and_not_the_others(
    tmp_path: Path,
) -> None:
    """As where the system has no more mappings to give when the store grows during a read."""
    async with opened(tmp_path) as store:
        for number in range(5):
            await put(store, LARGE, number)
        first, _ = store._volume._extents.values()
        first._mapped = None
        async with store.in_place(LARGE, [key(0), key(4)]) as (failed, found):
            assert failed.status is ReadStatus.FAILED
            assert bytes(found.data) == block(LARGE, 4)


async def test_a_disk_that_cannot_be_read_fails_in_place_and_recovers(tmp_path: Path) -> None:
    disk = RefusingFiles(errno.EIO)
    async with opened(tmp_path, files=disk) as store:
        await put(store, LARGE, 1)
        drop_from_cache(tmp_path)
        disk.refused = {"read"}
        async with store.in_place(LARGE, [key(1)]) as (found,):
            assert found.status is ReadStatus.FAILED
        disk.refused = set()
        assert await get(store, LARGE, 1) is ReadStatus.FOUND
        assert store.counters["read_errors"] == 1


class RefusingFiles(DiskFiles):
    """A disk that refuses what is in `refused`, once its files are open."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.refused: set[str] = set()

    def check(self, what: str) -> None:
        if what in self.refused:
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: Path, nbytes: int) -> DiskFile:
        self.check("create")
        return super().create(path, nbytes)

    def open(self, path: Path, *, writable: bool = True, direct: bool = False) -> DiskFile:
        super().open(path, writable=writable, direct=direct).close()
        return RefusingFile(self, path, os.O_RDWR if writable else os.O_RDONLY)


class RefusingFile(DiskFile):
    def __init__(self, disk: RefusingFiles, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self._disk = disk

    def read(self, views: Views, offset: int) -> bool:
        self._disk.check("read")
        return super().read(views, offset)

    def read_cached(self, view: memoryview, offset: int) -> bool:
        self._disk.check("read")
        return super().read_cached(view, offset)

    def fetch(self, offset: int, nbytes: int) -> bool:
        self._disk.check("read")
        return super().fetch(offset, nbytes)

    def write(self, views: Views, offset: int) -> None:
        self._disk.check("write")
        super().write(views, offset)

    def sync(self) -> None:
        self._disk.check("sync")
        super().sync()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("refused", ["create", "write", "sync"])
async def test_a_disk_that_refuses_costs_blocks_and_one_warning(
    tmp_path: Path, code: int, refused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    disk, held = RefusingFiles(code), {BlockName(namespace_dir(SMALL), key(1))}
    async with opened(
        tmp_path, files=disk, held=held.__contains__, fsync=True, extent_bytes=1
    ) as store:
        assert await put(store, SMALL, 1) is WriteStatus.STORED
        disk.refused = {refused, "read"}
        for number in (2, 3):
            assert await put(store, SMALL, number) is WriteStatus.NOT_STORED
        assert await get(store, SMALL, 1) is ReadStatus.FAILED
        disk.refused = set()
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
        what = "sync" if refused == "sync" else "write"
        assert store.counters[f"{what}_errors"] >= 1
        assert capsys.readouterr().out.count(f"the disk refuses to {what} blocks") == 1
        store._volume._grow_from.clear()
        assert await put(store, SMALL, 4) is WriteStatus.STORED
    async with opened(tmp_path, extent_bytes=1) as store:
        assert {1, 4} <= there(store, SMALL)
        for number in there(store, SMALL):
            assert await get(store, SMALL, number) is ReadStatus.FOUND


async def test_on_a_full_disk_old_blocks_give_way(tmp_path: Path) -> None:
    disk = RefusingFiles(errno.ENOSPC)
    async with opened(tmp_path, files=disk) as store:
        for number in range(4):
            await put(store, LARGE, number)
        disk.refused = {"create"}
        assert await put(store, LARGE, 4) is WriteStatus.STORED
        assert there(store, LARGE) == {1, 2, 3, 4}
        assert await put(store, SMALL, 1) is WriteStatus.NOT_STORED
        assert there(store, LARGE) == {1, 2, 3, 4}


async def test_a_file_system_that_is_read_only_serves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, mode)

    async with opened(tmp_path) as store:
        await put(store, SMALL, 1)
        await put(store, SMALL, 2)
    flip(*where(tmp_path, namespace_dir(SMALL), key(2)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        async with opened(tmp_path) as store:
            assert await get(store, SMALL, 1) is ReadStatus.FOUND
            assert await get(store, SMALL, 2) is ReadStatus.CORRUPT
            assert await get(store, SMALL, 2) is ReadStatus.ABSENT
            for namespace in (SMALL, LARGE):
                assert await put(store, namespace, 3) is WriteStatus.NOT_STORED
    async with opened(tmp_path) as store:
        assert await put(store, SMALL, 3) is WriteStatus.STORED


async def test_a_sync_that_failed_has_everything_since_checked_at_the_next_start(
    tmp_path: Path,
) -> None:
    disk = RefusingFiles(errno.EIO)
    async with opened(tmp_path, files=disk, sync_s=3600) as store:
        await put(store, SMALL, 1)
        disk.refused = {"sync"}
        assert not await store._synced()
        disk.refused = set()
        await put(store, SMALL, 2)
        assert await store._synced()
    async with opened(tmp_path) as store:
        assert there(store, SMALL) == {1, 2}
        assert store.counters["checked_at_open"] == 2


async def test_directories_that_vanish_are_made_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for number in range(4):
            await put(store, LARGE, number)
        shutil.rmtree(tmp_path / namespace_dir(LARGE))
        assert await put(store, LARGE, 5) is WriteStatus.STORED
        assert await get(store, LARGE, 5) is ReadStatus.FOUND
    async with opened(tmp_path) as store:
        assert there(store, LARGE) == {5}


async def test_two_stores_on_one_directory_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(StoreInUse, match=rf"in use by process {os.getpid()}; stop that one"):
            await DiskStore(tmp_path).open()
    async with opened(tmp_path):
        pass


async def test_many_writers_of_one_block_all_succeed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with asyncio.TaskGroup() as group:
            writes = [group.create_task(put(store, LARGE, 1)) for _ in range(20)]
            reads = [group.create_task(get(store, LARGE, 1)) for _ in range(20)]
        assert all(task.result() is not WriteStatus.NOT_STORED for task in writes)
        assert {task.result() for task in reads} <= {ReadStatus.ABSENT, ReadStatus.FOUND}
        assert store.stat() == StoreStat(1, 5000)


async def test_batches_that_overlap_crosswise_all_succeed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        batches = [[1, 2, 3], [3, 2, 1], [2, 4, 2], [4, 3]]
        async with asyncio.TaskGroup() as group:
            writes = [
                group.create_task(store.write(LARGE, [new(LARGE, n) for n in batch]))
                for batch in batches
            ]
        results = [status for task in writes for status in task.result()]
        assert WriteStatus.NOT_STORED not in results
        assert results.count(WriteStatus.STORED) == 4
        assert there(store, LARGE) == {1, 2, 3, 4}


async def test_a_cancelled_write_leaves_its_blocks_whole_and_no_slot_lost(tmp_path: Path) -> None:
    async with opened(tmp_path, capacity_bytes=allocated_bytes(4, 5000)) as store:
        for number in range(40):
            writing = asyncio.create_task(put(store, LARGE, number))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
        for number in there(store, LARGE):
            assert await get(store, LARGE, number) is ReadStatus.FOUND
        for number in range(50, 54):
            assert await put(store, LARGE, number) is WriteStatus.STORED
        assert there(store, LARGE) == {50, 51, 52, 53}


# ── capacity ───────────────────────────────────────────────────────────────────────────────────────
def on_disk(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*-*/*.[st]*[se]"))


async def test_the_blocks_touched_longest_ago_give_way_to_new_ones(tmp_path: Path) -> None:
    async with opened(tmp_path, capacity_bytes=allocated_bytes(3, 5000) + 10) as store:
        for number in (1, 2, 3):
            assert await put(store, LARGE, number) is WriteStatus.STORED
        store.touch(LARGE, [key(1)])
        assert await put(store, LARGE, 4) is WriteStatus.STORED
        assert there(store, LARGE) == {1, 3, 4}
        assert await get(store, LARGE, 2) is ReadStatus.ABSENT
        assert store.counters["evicted"] == 1
        assert store.stat() == StoreStat(3, 15_000)


async def test_of_a_chain_the_end_gives_way_first(tmp_path: Path) -> None:
    async with opened(tmp_path, capacity_bytes=allocated_bytes(4, 5000)) as store:
        for number in (1, 2, 3, 4):
            await put(store, LARGE, number, depth=number)
        store.touch(LARGE, [key(number) for number in (1, 2, 3, 4)])
        for number in (5, 6):
            await put(store, LARGE, number)
        assert there(store, LARGE) == {1, 2, 5, 6}


async def test_depth_and_age_outlive_a_restart(tmp_path: Path) -> None:
    capacity = allocated_bytes(4, 5000)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        await store.write(LARGE, [new(LARGE, number, 9 - number) for number in (1, 2, 3)])
        await put(store, LARGE, 4, depth=20)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        for number, left in ((5, {2, 3, 4, 5}), (6, {3, 4, 5, 6}), (7, {4, 5, 6, 7})):
            await put(store, LARGE, number)
            assert there(store, LARGE) == left


async def test_a_capacity_is_never_exceeded_whatever_is_written_at_once(tmp_path: Path) -> None:
    capacity = allocated_bytes(5, 5000)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        sizes = []
        async with asyncio.TaskGroup() as group:
            writes = [group.create_task(put(store, LARGE, number)) for number in range(40)]
            for write in writes:
                write.add_done_callback(lambda _: sizes.append(on_disk(tmp_path)))
        assert {task.result() for task in writes} <= {WriteStatus.STORED, WriteStatus.NOT_STORED}
        assert len(there(store, LARGE)) == 5
        assert max(sizes) <= capacity
        assert on_disk(tmp_path) == store.allocated_bytes == capacity
        for number in there(store, LARGE):
            assert await get(store, LARGE, number) is ReadStatus.FOUND


async def test_what_is_held_stays_and_where_all_is_held_nothing_more_is_stored(
    tmp_path: Path,
) -> None:
    held = {BlockName(namespace_dir(LARGE), key(1))}
    capacity = allocated_bytes(2, 5000)
    async with opened(tmp_path, capacity_bytes=capacity, held=held.__contains__) as store:
        for number in (1, 2, 3):
            assert await put(store, LARGE, number) is WriteStatus.STORED
        assert there(store, LARGE) == {1, 3}
        held.add(BlockName(namespace_dir(LARGE), key(3)))
        assert await put(store, LARGE, 4) is WriteStatus.NOT_STORED
        assert store.counters["write_no_space"] == 1
        held.clear()
        assert await put(store, LARGE, 4) is WriteStatus.STORED
        assert there(store, LARGE) == {3, 4}


async def test_a_new_models_blocks_take_the_place_of_an_old_ones(tmp_path: Path) -> None:
    capacity = allocated_bytes(8, 5000)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        for number in range(8):
            await put(store, LARGE, number)
        assert await put(store, SMALL, 1) is WriteStatus.STORED
        assert on_disk(tmp_path) <= capacity
        assert there(store, LARGE) == {4, 5, 6, 7}
        assert await get(store, SMALL, 1) is ReadStatus.FOUND
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        assert (there(store, LARGE), there(store, SMALL)) == ({4, 5, 6, 7}, {1})


async def test_a_block_that_is_larger_than_the_capacity_is_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path, capacity_bytes=allocated_bytes(1, 5000) - 1) as store:
        await put(store, SMALL, 1)
        assert await put(store, LARGE, 1) is WriteStatus.NOT_STORED
        assert await get(store, SMALL, 1) is ReadStatus.FOUND


async def test_opened_with_less_capacity_it_holds_no_more_and_that_is_right(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        for number in range(10):
            await put(store, LARGE, number)
    capacity = allocated_bytes(3, 5000)
    async with opened(tmp_path, capacity_bytes=capacity) as store:
        assert on_disk(tmp_path) <= capacity
        assert store.counters["evicted"] >= 7
        assert there(store, LARGE)
        for number in there(store, LARGE):
            assert await get(store, LARGE, number) is ReadStatus.FOUND
        for number in range(20, 23):
            assert await put(store, LARGE, number) is WriteStatus.STORED


async def test_blocks_that_nobody_touches_are_given_up_after_their_time(tmp_path: Path) -> None:
    held = {BlockName(namespace_dir(SMALL), key(3))}
    async with opened(tmp_path, held=held.__contains__, ttl_s=3600, sync_s=0.01) as store:
        for number in (1, 2, 3):
            await put(store, SMALL, number)
        since = time.time()
        store.touch(SMALL, [key(2)])
        assert await store.expire(since) == 1
        assert there(store, SMALL) == {2, 3}
        assert store.counters["expired"] == 1
    async with opened(tmp_path, ttl_s=1e-6, sync_s=0.01) as store:
        await until(lambda: not store.stat().blocks)
    async with opened(tmp_path) as store:
        assert there(store, SMALL) == set()
