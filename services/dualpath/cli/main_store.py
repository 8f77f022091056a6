"""The `dualpath store` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.options import AsJson, Config, Home

store = typer.Typer(no_args_is_help=True, help="Look at the blocks that are kept, and tidy up.")

Shard = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this shard, storage-0 for example.")
]

Directory = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Of blocks, as `store_directory`: this instead of shards."),
]


@store.command("stat")
def store_stat(
    home: Home = None,
    shard: Shard = None,
    directory: Directory = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Blocks and bytes on disk, by shard and model. Also while the cluster runs.

    Works on what the settings name: shards, a directory (--directory, or DUALPATH_STORE=directory), or a bucket.
    """
    from dualpath.cli.store import stat

    raise typer.Exit(stat(config, home, shard, directory, as_json=as_json))


@store.command("verify")
def store_verify(
    home: Home = None,
    shard: Shard = None,
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Read every block and compare it with its checksum. Also while the cluster runs.

    Exits with 1 where a block is damaged. Such a block is never served: whoever reads it next computes it anew.
    """
    from dualpath.cli.store import verify

    raise typer.Exit(verify(config, home, shard, directory))


@store.command("gc")
def store_gc(
    home: Home = None,
    shard: Shard = None,
    directory: Directory = None,
    unused_s: Annotated[
        float | None,
        typer.Option(metavar="S", help="Also blocks that were stored longer ago than this."),
    ] = None,
    config: Config = None,
) -> None:
    """Give room back to the disk. The cluster must be down.

    What goes: damaged blocks, empty extents, what is above store_capacity, or old.
    """
    from dualpath.cli.store import collect

    raise typer.Exit(collect(config, home, shard, directory, unused_s))


@store.command("drop")
def store_drop(
    fingerprint: Annotated[
        str | None,
        typer.Argument(help="Whose blocks: the model's fingerprint as `store stat` shows it."),
    ] = None,
    home: Home = None,
    shard: Shard = None,
    directory: Directory = None,
    everything: Annotated[bool, typer.Option("--all", help="Of every model.")] = False,
    config: Config = None,
) -> None:
    """Remove a model's blocks from disk, or with --all everything. The cluster must be down."""
    from dualpath.cli.store import drop

    raise typer.Exit(drop(config, home, shard, directory, fingerprint, everything=everything))
