"""What `dualpath store` works on: the disk of a shard, a directory that nodes mount, or a bucket."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from dualpath.kvstore.directory.layout import holds_store
from dualpath.kvstore.directory.survey import (
    collect_directory,
    drop_directory,
    stat_directory,
    verify_directory,
)
from dualpath.kvstore.disk import DiskOptions, DiskStore
from dualpath.kvstore.making import block_directory, require_s3
from dualpath.kvstore.survey import Checked, SpaceStat, Survey
from dualpath.settings import Settings


class Place(ABC):
    """Calls raise OSError where the place cannot be had, StoreInUse where a change needs others to stop first."""

    name: str

    @abstractmethod
    def stat(self) -> list[SpaceStat]: ...

    @abstractmethod
    def verify(self) -> Iterator[Checked]:
        """Read every block."""

    @abstractmethod
    def collect(self, settings: Settings, unused_s: float | None) -> tuple[int, int]:
        """Give room back: bytes given back, and blocks left."""

    @abstractmethod
    def drop(self, fingerprint: str | None) -> tuple[int, int, int]:
        """Remove the blocks of a model, or of all: namespaces that went, bytes given back, blocks left."""


class ShardPlace(Place):
    def __init__(self, root: Path, settings: Settings) -> None:
        self.name = root.name
        self._root = root
        self._settings = settings

    def stat(self) -> list[SpaceStat]:
        with Survey(self._root) as survey:
            return survey.stat()

    def verify(self) -> Iterator[Checked]:
        with Survey(self._root) as survey:
            yield from survey.verify()

    def collect(self, settings: Settings, unused_s: float | None) -> tuple[int, int]:
        async def tidy(store: DiskStore) -> None:
            if unused_s is not None:
                await store.expire(time.time() - unused_s)
            await store.collect()

        return asyncio.run(self._change(tidy))

    def drop(self, fingerprint: str | None) -> tuple[int, int, int]:
        wanted = [space for space in self.stat() if fingerprint in (None, space.fingerprint)]

        async def remove(store: DiskStore) -> None:
            for space in wanted:
                await store.drop(space.name)

        return len(wanted), *asyncio.run(self._change(remove))

    async def _change(
        self, work: Callable[[DiskStore], Coroutine[Any, Any, None]]
    ) -> tuple[int, int]:
        before = self._on_disk()
        store = DiskStore(self._root, DiskOptions(capacity_bytes=self._settings.store_capacity))
        await store.open()
        try:
            await work(store)
            blocks = store.stat().blocks
        finally:
            await store.close()
        return max(0, before - self._on_disk()), blocks

    def _on_disk(self) -> int:
        return sum(path.stat().st_size for path in self._root.glob("*-*/*") if path.is_file())


class DirectoryPlace(Place):
    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root

    def stat(self) -> list[SpaceStat]:
        return stat_directory(self._root)

    def verify(self) -> Iterator[Checked]:
        return verify_directory(self._root)

    def collect(self, settings: Settings, unused_s: float | None) -> tuple[int, int]:
        done = collect_directory(self._root, settings.store_capacity, unused_s)
        return done.nbytes, done.blocks

    def drop(self, fingerprint: str | None) -> tuple[int, int, int]:
        before = self.stat()
        dropped = drop_directory(self._root, fingerprint)
        after = self.stat()
        freed = sum(s.allocated_bytes for s in before) - sum(s.allocated_bytes for s in after)
        return dropped, max(0, freed), sum(space.blocks for space in after)


def places(settings: Settings, shard: str | None) -> list[Place]:
    """Where the settings' blocks are. Raises ValueError where there is no such store, OSError."""
    if settings.store != "shards" and shard is not None:
        raise ValueError(f"store is {settings.store}, which has no shards; leave --shard out")
    match settings.store:
        case "directory":
            root = block_directory(settings)
            if not root.is_dir():
                raise ValueError(f"there is no directory {root}; set store_directory")
            if not holds_store(root):
                raise ValueError(
                    f"{root} is not a directory of blocks: it has no keeper.lock, nor any model's blocks; give what "
                    "store_directory says, or leave --directory out for the shards of a home"
                )
            return [DirectoryPlace(root)]
        case "s3":
            require_s3()
            from dualpath.cli.store_bucket import BucketPlace
            from dualpath.kvstore.objects.options import bucket_options

            return [BucketPlace(bucket_options(settings))]
        case "shards":
            parent = settings.home / "store"
            paths = sorted(parent.iterdir()) if parent.is_dir() else []
            roots = [path for path in paths if path.is_dir() and shard in (None, path.name)]
            if not roots:
                raise ValueError(
                    f"there is no store of {shard or 'any shard'} in {parent}; set --home"
                )
            return [ShardPlace(root, settings) for root in roots]
