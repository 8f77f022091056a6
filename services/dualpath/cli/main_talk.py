"""The commands `chat` and `demo`, and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from dualpath.cli.options import ApiKey


def chat(
    url: Annotated[
        str, typer.Option(metavar="URL", help="The API; `up` prints it.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the one that is served.")
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt.")] = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of each answer at most.")
    ] = 500,
    temperature: Annotated[
        float,
        typer.Option(metavar="T", min=0, max=2, help="0 is greedy; small models ramble at 1."),
    ] = 0.2,
    api_key: ApiKey = None,
) -> None:
    """Talk to the model of a running cluster.

    Each answer is followed by a line: how much of the prompt had KV-Cache on storage, which side read it, the
    time to the first token, tokens per second. Ctrl-C stops an answer; /quit or Ctrl-D ends; /new begins anew.

    \b
    dualpath chat
    dualpath chat --url http://127.0.0.1:8001/v1 --temperature 0 --max-tokens 200
    """
    from dualpath.cli.chat import chat as talk

    raise typer.Exit(
        talk(
            url,
            model,
            api_key=api_key,
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
        )
    )


def demo(
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="smollm2 (default), tiny or synthetic.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use the cluster there; default: start one for the demo."),
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Watch an agent of 12 turns, and which NIC reads its KV-Cache.

    Starts a cluster of its own in a temporary home and stops it again. The agent's context grows, and nearly all of
    each prompt is in KV-Cache by then; the prefill and the decode node each read a part of it, if it is long enough.
    Four of the prompts are sent once more without their KV-Cache, and a table at the end compares: time to first
    token (TTFT) warm, by who read, and cold. Settings of the environment hold.

    \b
    dualpath demo
    DUALPATH_SNIC_BANDWIDTH=50MB/s dualpath demo --model synthetic
    dualpath demo --url http://127.0.0.1:8000/v1
    """
    from dualpath.cli.demo import demo as show

    raise typer.Exit(show(model, url, api_key=api_key))
