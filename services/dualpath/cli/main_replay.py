"""The `dualpath replay` command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dualpath.cli.options import ApiKey


def replay(
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="A trace of any known format; or 32K, 48K, 64K: made as needed."
        ),
    ],
    url: Annotated[
        str, typer.Option(metavar="URL", help="Any OpenAI-compatible API; ends in /v1.")
    ] = "http://127.0.0.1:8000/v1",
    agents: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many; a closed loop has 8 by default."),
    ] = None,
    aps: Annotated[
        float | None, typer.Option(metavar="RATE", help="Open loop: agents per second, Poisson.")
    ] = None,
    timed: Annotated[
        bool, typer.Option("--timed", help="Open loop: agents arrive when the trace says.")
    ] = False,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="LOW:HIGH", help="Open loops: the highest rate between, within the SLO."
        ),
    ] = None,
    max_s: Annotated[
        float | None, typer.Option(metavar="S", help="End a replay after so many seconds.")
    ] = None,
    paper_rules: Annotated[
        float | None,
        typer.Option(
            metavar="SCALE",
            help="End open loops by the paper's rules, their times divided by SCALE.",
        ),
    ] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(metavar="S", help="Of --search; default: 4 / SCALE.")
    ] = None,
    slo_tpot: Annotated[
        float | None, typer.Option(metavar="S", help="Of --search; default: 0.05 / SCALE.")
    ] = None,
    slo_percent: Annotated[
        float | None, typer.Option(metavar="P", help="Of --search: a percentile; default: means.")
    ] = None,
    lengths: Annotated[
        float, typer.Option(metavar="X", help="Of a made trace: scales contexts.")
    ] = 1.0,
    turns: Annotated[float, typer.Option(metavar="X", help="Of a made trace: scales turns.")] = 1.0,
    time: Annotated[
        float, typer.Option(metavar="X", help="Scales the trace's arrivals and delays.")
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="End trajectories at this context.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Of arrivals and contents: another one shares no KV-Cache with earlier replays.",
        ),
    ] = None,
    prompts: Annotated[
        str, typer.Option(metavar="HOW", help="auto, ids (exact lengths), text or chat.")
    ] = "auto",
    vocab: Annotated[
        str, typer.Option(metavar="LOW:HIGH", help="Token ids of made prompts.")
    ] = "300:30000",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the first that is served.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact/--no-exact", help="Ask for answers of exactly the trace's length."),
    ] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="Keep how a DualPath gateway served each turn.")
    ] = False,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of a request refused for now; counted.")
    ] = 0,
    timeout_s: Annotated[
        float, typer.Option(metavar="S", min=0.001, help="For a whole answer.")
    ] = 600.0,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates to trust, of an https URL.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The result, as JSON.")
    ] = None,
    records: Annotated[
        bool,
        typer.Option("--records/--no-records", help="With each turn's and each agent's figures."),
    ] = True,
    api_key: ApiKey = None,
) -> None:
    """Replay agents against an OpenAI-compatible server, and measure.

    Closed loop (default): all agents start at once, and each turn follows the last; the figure is the JCT. Open loop
    (--aps, --timed): agents arrive whatever the server does; the figures are TTFT, TTST, TPOT. More agents than
    the trace has trajectories reuse them after a random first round. Answers are checked to be whole and of the right
    length. Ctrl-C ends a replay, and its result is what was found so far.

    Exit code 0: all turns were answered; 1: some failed, or it could not begin; 2: wrong use; 130: Ctrl-C.

    \b
    dualpath replay --trace 64K --lengths 0.05 --turns 0.1 --agents 16
    dualpath replay --trace mine.jsonl --aps 0.5 --agents 100 -o result.json
    dualpath replay --trace mooncake.jsonl --timed --time 10 --max-tokens 8000
    dualpath replay --trace 64K --search 0.1:2 --paper-rules 30 --url http://127.0.0.1:8001/v1
    """
    from dualpath.cli.replay import Asked
    from dualpath.cli.replay import replay as run

    raise typer.Exit(run(Asked(**{k: v for k, v in locals().items() if k not in ("Asked", "run")})))
