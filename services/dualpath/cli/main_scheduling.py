"""The commands `why`, `drain`, `scale` and `calibrate`, and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpath.cli.options import AsJson, CnicBandwidth, Config, Dtype, Home, Model, SnicBandwidth

MOST_NODES = 64
"""Of a role, in a local cluster."""
Nodes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=MOST_NODES, help="So many nodes of this role."),
]


def why(
    request: Annotated[
        str | None,
        typer.Argument(metavar="REQUEST", help="The id of an answer; default: the latest ones."),
    ] = None,
    home: Home = None,
    config: Config = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=2000, help="Decisions at most, the latest.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Say why a request got its engines and its read path.

    A DE is chosen when the request comes, a PE and the read path once the DE has room for it. Each decision shows the
    engines as the scheduler saw them: unfinished requests (seq) and their tokens (tok), what is yet to compute, the
    node's read queue, free HBM, and the thresholds α and β. The scheduler keeps the last 2,000 decisions.

    Exit code 0: shown; 1: nothing is known of the request; 3: no cluster runs on the home.

    \b
    dualpath why
    dualpath why chatcmpl-5f0c7c0b52c1d6a3b1a0e4f7
    dualpath why --json --limit 100
    """
    from dualpath.cli.why import why as explain

    raise typer.Exit(explain(config, home, request, limit=limit, as_json=as_json))


def drain(
    name: Annotated[
        str, typer.Argument(metavar="NODE", help="prefill-1 for example; `status` names them.")
    ],
    home: Home = None,
    config: Config = None,
) -> None:
    """Let a node finish what it has and leave the cluster. Nothing is lost.

    The scheduler gives it nothing more; what it computes, or holds for others, goes on to its end (for `drain_s` at
    most, 30 s unless set otherwise; what is left then starts another attempt elsewhere). SIGTERM does the same to a
    node that was started by hand. One that joins takes work at once: start it with the cluster's settings.

    Exit code 0: it has left; 1: it has not in time; 2: there is no such node; 3: no cluster runs on the home.

    \b
    dualpath drain prefill-1
    DUALPATH_CONFIG=HOME/run/settings.json dualpath serve prefill --name prefill-2
    """
    from dualpath.cli.drain import drain as leave

    raise typer.Exit(leave(config, home, name))


def scale(
    prefill: Nodes = None,
    decode: Nodes = None,
    home: Home = None,
    config: Config = None,
) -> None:
    """Give the cluster on a home more nodes, or fewer.

    Nodes that are missing are started, and take work as soon as they serve; of those that are too many the last ones
    finish what they have and leave, as with `drain`. Returns when all of it is done. A role that is not named stays
    as it is.

    Exit code 0: done; 1: not in time, or a node did not start; 2: wrong use; 3: no cluster runs on the home.

    \b
    dualpath scale --prefill 2 --decode 3
    dualpath scale --prefill 1
    """
    from dualpath.cli.scale import scale as bring

    raise typer.Exit(bring(config, home, prefill, decode))


def calibrate(
    model: Model = None,
    dtype: Dtype = None,
    snic_bandwidth: SnicBandwidth = None,
    cnic_bandwidth: CnicBandwidth = None,
    home: Home = None,
    config: Config = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", min=0.1, help="For prefill forwards; cheap ones come first."),
    ] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Measure this machine as a node, for scheduling and batches.

    Reads blocks from a shard of its own (SNIC), writes between two endpoints (CNIC), runs prefill forwards over
    cached and new tokens, and decode steps by batch. What comes of it:

    \b
    α      tokens that a node reads in 3 s: a longer read queue makes its engines second choice
    β      tokens that an engine computes in 5 s: with more to do it gets nothing
    quota  300 ms of attention per forward: a fit of the time over (cached, new) says how many tokens

    Kept in HOME/profiles, a file for each model, device, threads and NICs; nodes of that home use the one that
    fits from their next start on. Where none fits they measure a few forwards as they start, and take NICs as they
    are set. The machine should have nothing else to do meanwhile.

    Exit code 0: measured; 1: something could not be; 2: settings are wrong; 130: interrupted.

    \b
    dualpath calibrate --model tiny
    dualpath calibrate --model synthetic --snic-bandwidth 50MB/s --json
    dualpath calibrate --seconds 120
    """
    given = {
        "model": model,
        "dtype": dtype,
        "snic_bandwidth": snic_bandwidth,
        "cnic_bandwidth": cnic_bandwidth,
        "home": home,
    }
    from dualpath.cli.calibrate import calibrate as measure

    raise typer.Exit(measure(config, given, seconds=seconds, as_json=as_json))
