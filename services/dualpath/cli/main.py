"""The `dualpath` command: what there is, and its options. Whatever a command needs is loaded when it runs."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from dualpath.cli.leaving import leave
from dualpath.cli.main_bench import bench
from dualpath.cli.main_replay import replay
from dualpath.cli.main_scheduling import calibrate, drain, scale, why
from dualpath.cli.main_store import store as store_commands
from dualpath.cli.main_talk import chat, demo
from dualpath.cli.main_trace import trace
from dualpath.cli.options import (
    AsJson,
    CnicBandwidth,
    Config,
    Decode,
    Dtype,
    Engines,
    Gateways,
    Home,
    Layerwise,
    Mode,
    Model,
    Port,
    Prefill,
    ReadPath,
    Shards,
    SnicBandwidth,
    Store,
    UseTls,
)

app = typer.Typer(
    name="dualpath",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench, name="bench")
app.add_typer(store_commands, name="store")
app.add_typer(trace, name="trace")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"dualpath {metadata.version('dualpath')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Serve an LLM from separate prefill and decode nodes, with its KV-Cache on storage read by both.

    \b
    dualpath up                                    SmolLM2 on this machine, API on port 8000
    dualpath up --model synthetic --prefill 2      emulated engines: whole clusters on a laptop
    dualpath status                                nodes, queues, pools, NICs
    dualpath top                                   the same, live: lanes, read queues, read paths
    dualpath why                                   who got which engine and read path, and why
    dualpath drain NODE                            let a node finish and leave
    dualpath scale --prefill 2 --decode 3          more nodes, or fewer, while it serves
    dualpath down                                  stop it
    dualpath doctor                                what is missing, and what to do
    dualpath calibrate                             how fast this machine is, for the scheduler
    dualpath chat                                  talk to it
    dualpath demo                                  an agent whose KV-Cache is read on both sides
    dualpath bench isolation                       what virtual lanes do for model execution
    dualpath trace make -o 64k.jsonl               agents like the paper's, to replay
    dualpath replay --trace 64k.jsonl              replay them against any server, and measure
    dualpath bench offline                         Basic, DualPath and Oracle, on clusters of their own
    dualpath report A.json B.json                  what changed between two of those
    dualpath store stat                            what KV-Cache is kept on disk

    Every option of `up` is a setting; so is much else. A setting comes from the command line, from
    DUALPATH_<SETTING> in the environment, or from a file (--config), in this order.
    """


@app.command()
def up(
    model: Model = None,
    prefill: Prefill = None,
    decode: Decode = None,
    engines: Engines = None,
    store: Store = None,
    shards: Shards = None,
    gateways: Gateways = None,
    mode: Mode = None,
    read_path: ReadPath = None,
    layerwise: Layerwise = None,
    dtype: Dtype = None,
    snic_bandwidth: SnicBandwidth = None,
    cnic_bandwidth: CnicBandwidth = None,
    tls: UseTls = None,
    port: Port = None,
    home: Home = None,
    config: Config = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="console (default) or json.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once ready; the cluster goes on.")
    ] = False,
) -> None:
    """Start a cluster on this machine, and serve until Ctrl-C.

    Prints a curl line that works once everything is ready. All processes' output comes through, each line
    with its process's name, and goes to HOME/logs as well. A process that dies is reported, not restarted.

    \b
    dualpath up
    dualpath up --model tiny --home ./try --port 0
    dualpath up --model synthetic --prefill 1 --decode 2 --snic-bandwidth 50MB/s
    dualpath up --model ~/models/Qwen2.5-0.5B-Instruct --dtype float32
    dualpath up --store directory
    dualpath up --mode pe-only --detach && dualpath status && dualpath down
    """
    given: dict[str, Any] = {
        name: value for name, value in locals().items() if name not in ("config", "detach")
    }
    from dualpath.cli import commands

    raise typer.Exit(commands.up(config, given, detach=detach))


@app.command()
def status(
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show the cluster on a home: processes, queues, pools, NICs.

    Exit code 0: all well; 1: something has died or does not answer; 3: no cluster runs there.
    """
    from dualpath.cli import commands

    raise typer.Exit(commands.status(config, home, as_json=as_json))


@app.command()
def top(
    home: Home = None,
    config: Config = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="From one picture to the next.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="One picture, of one interval; for scripts.")
    ] = False,
) -> None:
    """Watch a cluster at work: NICs, lanes, read queues, read paths.

    Ctrl-C ends it.

    Each line is a NIC's lane in one direction, out of the process or into it: bytes per second, what that is of the
    emulated bandwidth (where there is one), the lane's share of what moves that way, chunks that wait for their
    turn now, and how long 99 % of the chunks waited at most. `high` carries model execution, `low` KV-Cache.
    read_q are the tokens that a node has yet to read from storage: the side with fewer reads more.

    Exit code 0: shown; 3: no cluster runs on the home, or it has stopped.

    \b
    dualpath top
    dualpath top --home ./try --interval 0.5
    dualpath top --once
    """
    from dualpath.cli.top import top as watch

    raise typer.Exit(watch(config, home, interval_s=interval, once=once))


@app.command()
def down(home: Home = None, config: Config = None) -> None:
    """Stop the cluster on a home, and wait until it has ended.

    Nothing to stop is fine: the exit code is 0 then too.
    """
    from dualpath.cli import commands

    raise typer.Exit(commands.down(config, home))


@app.command()
def doctor(
    model: Model = None,
    prefill: Prefill = None,
    decode: Decode = None,
    engines: Engines = None,
    store: Store = None,
    shards: Shards = None,
    gateways: Gateways = None,
    mode: Mode = None,
    read_path: ReadPath = None,
    layerwise: Layerwise = None,
    dtype: Dtype = None,
    snic_bandwidth: SnicBandwidth = None,
    cnic_bandwidth: CnicBandwidth = None,
    tls: UseTls = None,
    port: Port = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a cluster could start here, and what to do if not.

    Looks at packages, nats-server, the model, ports, disk, memory, the CPU, the shape and the pools; starts and
    writes nothing. Takes the options of `up`.

    Exit code 0: it can start (! is worth knowing); 1: something is in the way (✗); 2: settings are wrong.

    \b
    dualpath doctor
    dualpath doctor --prefill 2 --engines 8 --snic-bandwidth 400Gbps --cnic-bandwidth 400Gbps
    """
    given: dict[str, Any] = {
        name: value for name, value in locals().items() if name not in ("config", "as_json")
    }
    from dualpath.cli.doctor import doctor as examine

    raise typer.Exit(examine(config, given, as_json=as_json))


for command in (why, drain, scale, calibrate, chat, demo, replay):
    app.command()(command)


@app.command()
def report(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="FILE.json...", help="One to draw anew, or two to compare."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Write PATH.html (and, of one, PATH.png); PATH.svg: the main charts.",
        ),
    ] = None,
) -> None:
    """Show a result of `dualpath bench`, or compare two.

    A change is told from the spread of runs: take several repetitions. With --out, as a page too.

    \b
    dualpath report dualpath-offline-20261130-1200.json --out offline
    dualpath report before.json after.json --out change
    """
    from dualpath.cli.bench.reporting import report as show

    raise typer.Exit(show(results, out))


@app.command()
def serve(
    role: Annotated[
        str, typer.Argument(metavar="ROLE", help="storage, scheduler, prefill, decode or gateway.")
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Unique in the cluster; ROLE-0 for example.")
    ],
    config: Config = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="A gateway's port; default: --port's setting."
        ),
    ] = None,
    http_port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Of /metrics and /health, but of a gateway; 0: any free one.",
        ),
    ] = 0,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run one process of a cluster; `up` does this for you.

    By hand (on several machines, in containers) all processes need the same settings, above all nats_url,
    secret and shard_addresses, and storage shards must be there first.

    \b
    DUALPATH_CONFIG=cluster.toml dualpath serve storage --name storage-0
    """
    from dualpath.cli import serve as composition

    code = composition.serve(
        role, name, config=config, port=port, http_port=http_port, ready_fd=ready_fd
    )
    # Everything is closed by now; taking torch's many objects apart one by one would take seconds more.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Entry of the console script."""
    try:
        app(prog_name="dualpath")
    except SystemExit as exit_:
        leave(exit_)


if __name__ == "__main__":
    main()
