"""The `dualpath store` commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpath.cli.options import AsJson, Config, Home

store = typer.Typer(no_args_is_help=True, help="Look at the blocks that shards keep, and tidy up.")

Shard = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this shard, storage-0 for example.")
]


@store.command("stat")
def store_stat(
    home: Home = None,
    shard: Shard = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Blocks and bytes on disk, by shard and model. Also while the cluster runs."""
    from dualpath.cli.store import stat

    raise typer.Exit(stat(config, home, shard, as_json=as_json))


@store.command("verify")
def store_verify(home: Home = None, shard: Shard = None, config: Config = None) -> None:
    """Read every block and compare it with its checksum. Also while the cluster runs.

    Exits with 1 where a block is damaged. Such a block is never served: whoever reads it next computes it anew.
    """
    from dualpath.cli.store import verify

    raise typer.Exit(verify(config, home, shard))


@store.command("gc")
def store_gc(
    home: Home = None,
    shard: Shard = None,
    unused_s: Annotated[
        float | None,
        typer.Option(metavar="S", help="Also blocks that were stored longer ago than this."),
    ] = None,
    config: Config = None,
) -> None:
    """Give room back to the disk: damaged blocks, empty extents, what is above store_capacity, or old.

    The cluster must be down.
    """
    from dualpath.cli.store import collect

    raise typer.Exit(collect(config, home, shard, unused_s))


@store.command("drop")
def store_drop(
    fingerprint: Annotated[
        str | None,
        typer.Argument(help="Whose blocks: the model's fingerprint as `store stat` shows it."),
    ] = None,
    home: Home = None,
    shard: Shard = None,
    everything: Annotated[bool, typer.Option("--all", help="Of every model.")] = False,
    config: Config = None,
) -> None:
    """Remove a model's blocks from disk, or with --all everything. The cluster must be down."""
    from dualpath.cli.store import drop

    raise typer.Exit(drop(config, home, shard, fingerprint, everything=everything))
