"""The bucket of an object store, as `dualpath store` sees it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from dualpath.cli.store_places import Place
from dualpath.kvstore.directory.layout import key_of
from dualpath.kvstore.objects.bucket import Bucket, BucketError, BucketOptions, Found
from dualpath.kvstore.sealed import TRAILER_BYTES, is_whole
from dualpath.kvstore.survey import Checked, SpaceStat
from dualpath.settings import Settings
from dualpath.wire.store import Namespace

T = TypeVar("T")

TOGETHER = 16
"""Objects that are read at a time."""


class BucketPlace(Place):
    """Raises OSError for what the object store refuses."""

    def __init__(self, options: BucketOptions) -> None:
        self.name = f"{options.bucket}/{options.prefix}".rstrip("/")
        self._bucket = Bucket(options)

    def stat(self) -> list[SpaceStat]:
        objects = self._run_list()
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        times: defaultdict[str, list[float]] = defaultdict(list)
        for found in objects:
            space, kind = _parts(found)
            if kind:
                counts[space]["bytes"] += found.nbytes
                counts[space][kind] += 1
            if kind == "blocks":
                times[space].append(found.modified.timestamp())
        return [
            SpaceStat(
                space,
                self._fingerprint(space),
                int(space.rpartition("-")[2]),
                count["blocks"],
                count["aside"],
                count["bytes"],
                (min(times[space]), max(times[space])) if times[space] else None,
            )
            for space, count in sorted(counts.items())
        ]

    def verify(self) -> Iterator[Checked]:
        blocks = [found for found in self._run_list() if _parts(found)[1] == "blocks"]

        async def read(batch: list[Found]) -> list[Checked | None]:
            return list(await asyncio.gather(*(self._check(found) for found in batch)))

        for at in range(0, len(blocks), TOGETHER):
            for checked in _run(read(blocks[at : at + TOGETHER])):
                if checked is not None:
                    yield checked

    async def _check(self, found: Found) -> Checked | None:
        """None for an object that is no block, or is gone."""
        space, name = _parts(found)[0], found.path.rpartition("/")[2]
        key, block_bytes = key_of(name), int(space.rpartition("-")[2])
        got = await self._bucket.get(found.path)
        if key is None or got is None:
            return None
        data, _ = got
        right = len(data) == block_bytes + TRAILER_BYTES and is_whole(
            key, data[:block_bytes], data[block_bytes:]
        )
        return Checked(space, key, block_bytes, right)

    def collect(self, settings: Settings, unused_s: float | None) -> tuple[int, int]:
        """Damaged blocks, and those that were stored longer ago than that."""
        before = time.time() - unused_s if unused_s is not None else 0.0
        blocks = [(found, _parts(found)[1]) for found in self._run_list()]
        gone = [
            found
            for found, kind in blocks
            if kind == "aside" or (kind == "blocks" and found.modified.timestamp() < before)
        ]
        self._delete(gone)
        left = sum(kind == "blocks" for _, kind in blocks)
        left -= sum(_parts(found)[1] == "blocks" for found in gone)
        return sum(found.nbytes for found in gone), left

    def drop(self, fingerprint: str | None) -> tuple[int, int, int]:
        spaces = self.stat()
        wanted = {space.name for space in spaces if fingerprint in (None, space.fingerprint)}
        gone = [found for found in self._run_list() if found.path.partition("/")[0] in wanted]
        self._delete(gone)
        left = sum(space.blocks for space in spaces if space.name not in wanted)
        return len(wanted), sum(found.nbytes for found in gone), left

    def _delete(self, objects: list[Found]) -> None:
        if objects:
            _run(self._bucket.delete([found.path for found in objects]))

    def _run_list(self) -> list[Found]:
        async def everything() -> list[Found]:
            return [found async for found in self._bucket.list("")]

        return _run(everything())

    def _fingerprint(self, space: str) -> str:
        got = _run(self._bucket.get(f"{space}/namespace.json"))
        try:
            return msgspec.json.decode(got[0], type=Namespace).fingerprint if got else "?"
        except msgspec.DecodeError:
            return "?"


def _parts(found: Found) -> tuple[str, str]:
    """Namespace and kind (`blocks`, `aside`) of an object; an empty kind for one that is neither."""
    space, _, rest = found.path.partition("/")
    kind = rest.partition("/")[0]
    named = space.rpartition("-")[2].isdecimal()
    return space, kind if named and kind in ("blocks", "aside") else ""


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except BucketError as error:
        raise OSError(str(error)) from None
