"""What `dualpath store` does: the blocks of a home's shards, looked at and tidied up on the disk itself."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dualpath.cli.tables import new_table, readable_size
from dualpath.cli.words import WRONG_USE, complain
from dualpath.kvstore.disk import DiskOptions, DiskStore, StoreInUse
from dualpath.kvstore.survey import SpaceStat, Survey
from dualpath.settings import Settings, load_settings

FAILED = 1
WIDE = 160


def stat(config: Path | None, home: Path | None, shard: str | None, *, as_json: bool) -> int:
    """Exit code: 0, 2 where there is no such store or it cannot be read."""
    found: list[tuple[str, SpaceStat]] = []
    with _told():
        for root in _roots(config, home, shard):
            with Survey(root) as survey:
                found += [(root.name, space) for space in survey.stat()]
        if as_json:
            print(json.dumps([{"shard": name, **asdict(space)} for name, space in found]))
            return 0
        shown = new_table(
            "Blocks on disk", "shard", "fingerprint", "last stored",
            "block", "blocks", "bytes", "on disk", "damaged", numbers=5,
        )  # fmt: skip
        for name, space in found:
            shown.add_row(
                name,
                space.fingerprint,
                _age(space),
                readable_size(space.block_bytes),
                f"{space.blocks:,}",
                readable_size(space.blocks * space.block_bytes),
                readable_size(space.allocated_bytes),
                f"{space.aside:,}",
            )
        Console(width=None if sys.stdout.isatty() else WIDE).print(shown)
        return 0
    return WRONG_USE


def verify(config: Path | None, home: Path | None, shard: str | None) -> int:
    """Exit code: 0 where all is right, 1 where not, 2 where there is no such store."""
    with _told(), _progress() as progress:
        blocks, damaged = 0, 0
        for root in _roots(config, home, shard):
            with Survey(root) as survey:
                nbytes = sum(space.blocks * space.block_bytes for space in survey.stat())
                bar = progress.add_task(root.name, total=nbytes)
                for checked in survey.verify():
                    progress.advance(bar, checked.nbytes)
                    blocks += 1
                    if not checked.right:
                        damaged += 1
                        progress.console.print(
                            f"{root.name}: block {checked.key.hex()} of {checked.space} is damaged"
                        )
        progress.console.print(f"{blocks:,} blocks verified, {damaged:,} damaged.")
        return FAILED if damaged else 0
    return WRONG_USE


def collect(
    config: Path | None, home: Path | None, shard: str | None, unused_s: float | None
) -> int:
    """Exit code: 0, 2 where there is no such store, it is in use, or the disk refuses."""

    async def tidy(store: DiskStore) -> None:
        if unused_s is not None:
            await store.expire(time.time() - unused_s)
        await store.collect()

    return _change(config, home, shard, tidy)


def drop(
    config: Path | None,
    home: Path | None,
    shard: str | None,
    wanted: str | None,
    *,
    everything: bool,
) -> int:
    """Exit code: 0, 2 where there is nothing of that name, it is in use, or the disk refuses."""
    if wanted is not None and everything:
        complain(
            f"--all drops the blocks of every model, not only of {wanted}; give one of the two"
        )
        return WRONG_USE
    if wanted is None and not everything:
        complain("say whose blocks: a fingerprint that `dualpath store stat` shows, or --all")
        return WRONG_USE
    dropped = 0

    async def remove(store: DiskStore) -> None:
        nonlocal dropped
        with Survey(store.root) as survey:
            spaces = survey.stat()
        for space in spaces:
            if everything or space.fingerprint == wanted:
                await store.drop(space.name)
                dropped += 1

    code = _change(config, home, shard, remove)
    if code == 0 and not dropped and not everything:
        complain(f"no shard has blocks of {wanted!r}; `dualpath store stat` shows what there is")
        return WRONG_USE
    return code


def _change(
    config: Path | None,
    home: Path | None,
    shard: str | None,
    work: Callable[[DiskStore], Coroutine[Any, Any, None]],
) -> int:
    """Do something to each store, and say what it has given back to the disk."""

    async def change(root: Path, settings: Settings) -> None:
        before = _on_disk(root)
        store = DiskStore(root, DiskOptions(capacity_bytes=settings.store_capacity))
        await store.open()
        try:
            await work(store)
            blocks = store.stat().blocks
        finally:
            await store.close()
        freed = max(0, before - _on_disk(root))
        print(f"{root.name}: {readable_size(freed)} given back, {blocks:,} blocks left")

    with _told():
        settings = load_settings(config, home=home)
        for root in _roots(config, home, shard):
            asyncio.run(change(root, settings))
        return 0
    return WRONG_USE


def _roots(config: Path | None, home: Path | None, shard: str | None) -> list[Path]:
    """The directories of a home's shards. Raises ValueError where there is none, OSError."""
    parent = load_settings(config, home=home).home / "store"
    paths = sorted(parent.iterdir()) if parent.is_dir() else []
    roots = [path for path in paths if path.is_dir() and shard in (None, path.name)]
    if not roots:
        raise ValueError(f"there is no store of {shard or 'any shard'} in {parent}; set --home")
    return roots


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong in the body is told, and the body left."""
    try:
        yield
    except StoreInUse as error:
        complain(f"{error} (`dualpath down`)")
    except (ValueError, OSError) as error:
        complain(str(error))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )


def _on_disk(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*-*/*") if path.is_file())


def _age(space: SpaceStat) -> str:
    if space.touched is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(space.touched[1]))
