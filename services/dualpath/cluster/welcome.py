"""What a user reads once the cluster serves: where it is, and how to call it."""

from __future__ import annotations

import json

from dualpath.cluster.record import ClusterRecord
from dualpath.settings import Settings


def curl_line(base_url: str, model: str) -> str:
    """A request that works when pasted into a shell."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32}
    ).replace("'", "'\\''")
    return f"curl {base_url}/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def welcome(record: ClusterRecord, settings: Settings) -> str:
    urls = record.base_urls
    shape = (
        f"mode {record.mode}, {settings.prefill} prefill + {settings.decode} decode "
        f"({settings.engines} engine{'s' if settings.engines > 1 else ''} each), "
        f"{settings.shards} storage shard{'s' if settings.shards > 1 else ''}"
    )
    lines = [
        "",
        f"DualPath serves {record.model} at {' and '.join(urls)}  ({shape})",
        "",
        f"  {curl_line(urls[0], record.model)}",
        "",
        f"  dualpath status --home {settings.home}",
        f"  dualpath down --home {settings.home}",
        "",
    ]
    return "\n".join(lines)
