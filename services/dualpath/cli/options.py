"""Options that several commands have. None: as the settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the cluster keeps everything.", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Settings as TOML; any setting can stand there."),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", envvar="OPENAI_API_KEY", help="Of the API, where `api_keys` is set."
    ),
]

Model = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="smollm2 (default), tiny, synthetic, or a directory."),
]
Prefill = Annotated[int | None, typer.Option(metavar="N", help="Prefill nodes.")]
Decode = Annotated[int | None, typer.Option(metavar="N", help="Decode nodes.")]
Engines = Annotated[int | None, typer.Option(metavar="N", help="Engines per node.")]
Shards = Annotated[int | None, typer.Option(metavar="N", help="Storage shards.")]
SnicBandwidth = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Emulate each node's storage NIC: 50MB/s, 400Gbps."),
]
CnicBandwidth = Annotated[
    str | None, typer.Option(metavar="RATE", help="Emulate each engine's compute NIC.")
]
Port = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Of the API; 8000 by default, 0 for any free one."),
]
