"""The store over a directory that this process mounts: no other process is asked."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dualpath.kvstore.api import BlockStore, PrefixMatch, ReadStatus, StoreStat, WriteStatus
from dualpath.kvstore.charging import charge_read, charge_write
from dualpath.kvstore.directory.files import BlockFiles
from dualpath.kvstore.directory.layout import each, key_of, space_of, taken_bytes
from dualpath.kvstore.directory.options import DirectoryOptions
from dualpath.kvstore.directory.pins import doomed, pin, unpin
from dualpath.kvstore.directory.upkeep import Upkeep
from dualpath.kvstore.health import DiskHealth
from dualpath.kvstore.views import checked_views, first_places
from dualpath.lanes.api import Nic
from dualpath.tasks import Tasks, Threads, together
from dualpath.wire.store import Namespace

_Run = Callable[[range], Coroutine[Any, Any, None]]

RUN_BYTES = 1 << 20
"""Blocks are read so many bytes at a time, or one by one where they are larger: a turn in a thread costs more than
reading a small block."""

LOOK_KEYS = 64
"""A thread looks for so many keys at a time."""

TOUCH_S = 10.0
"""A chain that was used more recently than this is not touched again."""


class DirectoryStore(BlockStore):
    """See `dualpath.kvstore.directory.layout` for what is where.

    A call that the file system does not answer is not given up: it may write into its caller's memory. Deadlines are
    kept between blocks.
    """

    def __init__(
        self,
        root: Path,
        *,
        fingerprint: str,
        block_bytes: int,
        nic: Nic,
        options: DirectoryOptions | None = None,
        keeps: bool = True,
    ) -> None:
        """`nic` paces what is read and written. With `keeps` this process may be the one that makes room; one without
        must not write where there is a capacity."""
        self.namespace = Namespace(fingerprint, block_bytes)
        self.counters: Counter[str] = Counter()
        """Blocks by what became of them: `read_found`, `read_absent`, …, `write_stored`, …"""
        self._options = options or DirectoryOptions()
        self._nic = nic
        self._space = space_of(root, self.namespace)
        self._files = BlockFiles(self._space, self.namespace, fsync=self._options.fsync)
        self._health = DiskHealth(root)
        self._threads = Threads(self._options.threads, "directory")
        self._tasks = Tasks()
        self._keeps = keeps
        self._upkeep = Upkeep(
            root,
            self._health,
            block_bytes=taken_bytes(self._space.file_bytes),
            capacity_bytes=self._options.capacity_bytes,
            ttl_s=self._options.ttl_s,
        )

    async def start(self) -> None:
        """Never fails: a directory that cannot be used holds nothing and takes nothing, which is told."""
        if not self._keeps:
            return
        try:
            await self._threads.run(partial(self._space.make, self.namespace))
        except OSError as error:
            self._health.failed("write", error)
        await self._upkeep.turn()
        self._tasks.spawn(self._upkeep.run(), "upkeep of the directory")

    async def close(self) -> None:
        await self._tasks.close()
        await self._upkeep.close()
        self._threads.close()

    # ── match ──────────────────────────────────────────────────────────────────────────────────────
    async def match(self, keys: Sequence[bytes], *, lease_s: float = 0.0) -> PrefixMatch:
        """A lease is a file (`dualpath.kvstore.directory.pins`); where none can be written there is no lease."""
        lease = await self._pin(keys, lease_s) if keys and lease_s > 0 else None
        matched: PrefixMatch | None = None
        try:
            blocks = await self._longest(keys)
            if blocks:
                matched = PrefixMatch(blocks, lease)
        except OSError as error:
            self._health.failed("read", error)
        finally:
            if matched is None and lease is not None:
                self._tasks.spawn(self._unpin(lease), "end of a lease")
        return matched or PrefixMatch(0)

    async def _longest(self, keys: Sequence[bytes]) -> int:
        """Blocks before the first hole. What is used is touched, all of it with one time stamp."""
        if not keys:
            return 0
        gone = await self._threads.run(partial(doomed, self._space))
        stamps: list[int] = []
        step = LOOK_KEYS
        while len(stamps) < len(keys):
            # Further with each step: a miss is not looked for in vain, and a long prefix takes few steps.
            asked = keys[len(stamps) : len(stamps) + step]
            seen = await self._stamps(asked)
            there = [None if key in gone else stamp for key, stamp in zip(asked, seen, strict=True)]
            hole = there.index(None) if None in there else len(there)
            stamps += [stamp for stamp in there[:hole] if stamp is not None]
            if hole < len(there):
                break
            step = min(2 * step, LOOK_KEYS * self._options.threads)
        now = time.time_ns()
        if stamps and now - min(stamps) > TOUCH_S * 1e9:
            try:
                await self._threads.run(partial(self._files.touch, keys[: len(stamps)], now))
            except OSError as error:
                self._health.failed("touch", error)
        return len(stamps)

    async def _stamps(self, keys: Sequence[bytes]) -> list[int | None]:
        parts = [keys[at : at + LOOK_KEYS] for at in range(0, len(keys), LOOK_KEYS)]
        found = await together(
            [self._threads.run(partial(self._files.stamps, part)) for part in parts]
        )
        return [stamp for part in found for stamp in part]

    async def _pin(self, keys: Sequence[bytes], lease_s: float) -> Path | None:
        try:
            return await self._threads.run(partial(pin, self._space, keys, lease_s))
        except FileNotFoundError:
            # Nothing was ever stored.
            return None
        except OSError as error:
            self._health.failed("lease", error)
            return None

    async def release(self, match: PrefixMatch) -> None:
        if isinstance(match.lease, Path):
            await self._unpin(match.lease)

    async def _unpin(self, lease: Path) -> None:
        try:
            await self._threads.run(partial(unpin, lease))
        except OSError as error:
            self._health.failed("lease", error)

    # ── read ───────────────────────────────────────────────────────────────────────────────────────
    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], *, deadline_s: float
    ) -> list[ReadStatus]:
        """Raises ValueError where a view is not of the block's size, or their number not that of the keys."""
        into = checked_views(self.namespace.block_bytes, keys, into)
        statuses = [ReadStatus.FAILED] * len(keys)
        ends = asyncio.get_running_loop().time() + deadline_s

        async def read_run(run: range) -> None:
            got = await self._threads.run(
                partial(self._read_run, [keys[i] for i in run], [into[i] for i in run])
            )
            for error in (what for what in got if isinstance(what, OSError)):
                self._health.failed("read", error)
            found = sum(what is ReadStatus.FOUND for what in got)
            await charge_read(self._nic, found * self.namespace.block_bytes)
            for index, what in zip(run, got, strict=True):
                if isinstance(what, ReadStatus):
                    statuses[index] = what

        await self._in_runs(len(keys), ends, read_run)
        for status in statuses:
            self.counters[f"read_{status.name.lower()}"] += 1
        return statuses

    def _read_run(
        self, keys: Sequence[bytes], into: Sequence[memoryview]
    ) -> list[ReadStatus | OSError]:
        got: list[ReadStatus | OSError] = []
        for key, view in zip(keys, into, strict=True):
            try:
                got.append(self._files.read(key, view))
            except OSError as error:
                # On NFS: removed by another machine between two of our calls.
                got.append(ReadStatus.ABSENT if error.errno == errno.ESTALE else error)
        return got

    async def _in_runs(self, blocks: int, ends: float, do: _Run) -> None:
        """Work through blocks, several runs at a time, until the loop's time `ends`."""
        size = self.namespace.block_bytes
        threads = self._options.threads
        per_run = max(1, min(RUN_BYTES // size, -(-blocks // threads)))
        runs: Iterator[range] = iter(
            [range(at, min(at + per_run, blocks)) for at in range(0, blocks, per_run)]
        )
        clock = asyncio.get_running_loop()

        async def work() -> None:
            for run in runs:
                if clock.time() >= ends:
                    return
                try:
                    async with asyncio.timeout_at(ends):
                        await do(run)
                except TimeoutError:
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(threads, blocks)):
                group.create_task(work())

    # ── write ──────────────────────────────────────────────────────────────────────────────────────
    async def write(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[memoryview],
        *,
        deadline_s: float,
        depth: int = 0,
    ) -> list[WriteStatus]:
        """Raises ValueError as `read` does. A key that comes twice is written once."""
        blocks = checked_views(self.namespace.block_bytes, keys, blocks)
        first = first_places(keys)
        unique = list(first)
        outcome = dict.fromkeys(unique, WriteStatus.NOT_STORED)
        ends = asyncio.get_running_loop().time() + deadline_s
        now_ns = time.time_ns()

        async def write_run(run: range) -> None:
            for key in [unique[index] for index in run]:
                outcome[key] = await self._put(key, blocks[first[key]], depth + first[key], now_ns)

        await self._in_runs(len(unique), ends, write_run)
        for status in outcome.values():
            self.counters[f"write_{status.name.lower()}"] += 1
        return [outcome[key] for key in keys]

    async def _put(self, key: bytes, block: memoryview, depth: int, now_ns: int) -> WriteStatus:
        """Write a block unless it is there, or there is no room for it."""
        try:
            (there,) = await self._threads.run(partial(self._files.stamps, [key]))
            room = taken_bytes(self._space.file_bytes)
            if there is None:
                if not self._upkeep.budget.reserve(room):
                    self._upkeep.hurry()
                    return WriteStatus.NOT_STORED
                # Where it is not known, for a cancelled call, it counts as stored until blocks are counted.
                stored = True
                try:
                    await charge_write(self._nic, self.namespace.block_bytes)
                    status = await self._threads.run(
                        partial(self._files.put, key, block, depth, now_ns)
                    )
                    stored = status is WriteStatus.STORED
                finally:
                    self._upkeep.budget.settle(room, stored=stored)
            else:
                status = await self._threads.run(
                    partial(self._files.put, key, block, depth, now_ns)
                )
        except OSError as error:
            self._health.failed("write", error)
            return WriteStatus.NOT_STORED
        self._health.worked("write")
        return status

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────
    async def stat(self) -> StoreStat:
        """Of this namespace; counts its files."""

        def count() -> int:
            names: list[str] = []
            each(
                self._space.blocks,
                lambda entry: each(Path(entry.path), lambda block: names.append(block.name)),
            )
            return sum(key_of(name) is not None for name in names)

        try:
            blocks = await self._threads.run(count)
        except OSError as error:
            self._health.failed("read", error)
            blocks = 0
        return StoreStat(blocks, blocks * self.namespace.block_bytes)
