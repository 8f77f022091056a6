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
Store = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Where KV-Cache is kept: shards (default), directory or s3."),
]
Shards = Annotated[int | None, typer.Option(metavar="N", help="Storage shards.")]
Gateways = Annotated[
    int | None, typer.Option(metavar="N", help="Gateways, on ports from --port on.")
]
Mode = Annotated[
    str | None,
    typer.Option(metavar="MODE", help="dualpath (default), pe-only, basic or oracle."),
]
ReadPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Who reads cached KV: split, adaptive, halves, round-robin, prefill or decode.",
    ),
]
Layerwise = Annotated[
    bool | None,
    typer.Option(
        "--layerwise/--no-layerwise",
        help="Hold one layer's KV on prefill engines, not all layers'.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="auto (default), bfloat16 or float32.")
]
SnicBandwidth = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Emulate each node's storage NIC: 50MB/s, 400Gbps."),
]
CnicBandwidth = Annotated[
    str | None, typer.Option(metavar="RATE", help="Emulate each engine's compute NIC.")
]
UseTls = Annotated[
    bool | None,
    typer.Option("--tls", help="Encrypt the links between processes.", show_default=False),
]
Port = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Of the API; 8000 by default, 0 for any free one."),
]
