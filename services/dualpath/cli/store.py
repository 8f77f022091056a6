"""What `dualpath store` does: blocks, looked at and tidied up where they are kept."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dualpath.cli.store_places import Place, places
from dualpath.cli.tables import new_table, readable_size
from dualpath.cli.words import WRONG_USE, complain
from dualpath.kvstore.lock import StoreInUse
from dualpath.kvstore.survey import SpaceStat
from dualpath.settings import Settings, load_settings

FAILED = 1
WIDE = 160


def stat(
    config: Path | None,
    home: Path | None,
    shard: str | None,
    directory: Path | None,
    *,
    as_json: bool,
) -> int:
    """Exit code: 0, 2 where there is no such store or it cannot be read."""
    with _told():
        found = [
            (place.name, space)
            for place in places(_settings(config, home, directory), shard)
            for space in place.stat()
        ]
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
        if found:
            Console(width=None if sys.stdout.isatty() else WIDE).print(shown)
        else:
            print("no blocks are kept yet")
        return 0
    return WRONG_USE


def verify(
    config: Path | None, home: Path | None, shard: str | None, directory: Path | None
) -> int:
    """Exit code: 0 where all is right, 1 where not, 2 where there is no such store."""
    with _told(), ExitStack() as stack:
        blocks, damaged = 0, 0
        found = list(places(_settings(config, home, directory), shard))
        # Not before there is something to read: it leaves a line behind.
        progress = stack.enter_context(_progress())
        for place in found:
            nbytes = sum(space.blocks * space.block_bytes for space in place.stat())
            bar = progress.add_task(place.name, total=nbytes)
            for checked in place.verify():
                progress.advance(bar, checked.nbytes)
                blocks += 1
                if not checked.right:
                    damaged += 1
                    progress.console.print(
                        f"{place.name}: block {checked.key.hex()} of {checked.space} is damaged"
                    )
        progress.console.print(f"{blocks:,} blocks verified, {damaged:,} damaged.")
        return FAILED if damaged else 0
    return WRONG_USE


def collect(
    config: Path | None,
    home: Path | None,
    shard: str | None,
    directory: Path | None,
    unused_s: float | None,
) -> int:
    """Exit code: 0, 2 where there is no such store, it is in use, or the disk refuses."""
    with _told():
        settings = _settings(config, home, directory)
        for place in places(settings, shard):
            _say(place, *place.collect(settings, unused_s))
        return 0
    return WRONG_USE


def drop(
    config: Path | None,
    home: Path | None,
    shard: str | None,
    directory: Path | None,
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
    with _told():
        dropped = 0
        for place in places(_settings(config, home, directory), shard):
            spaces, freed, left = place.drop(wanted)
            if spaces or everything:
                _say(place, freed, left)
            dropped += spaces
        if not dropped and not everything:
            complain(f"nothing is kept of {wanted!r}; `dualpath store stat` shows what there is")
            return WRONG_USE
        return 0
    return WRONG_USE


def _say(place: Place, freed_bytes: int, blocks: int) -> None:
    print(f"{place.name}: {readable_size(freed_bytes)} given back, {blocks:,} blocks left")


def _settings(config: Path | None, home: Path | None, directory: Path | None) -> Settings:
    """Raises ValueError."""
    if directory is not None:
        return load_settings(config, home=home, store="directory", store_directory=directory)
    return load_settings(config, home=home)


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


def _age(space: SpaceStat) -> str:
    if space.touched is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(space.touched[1]))
