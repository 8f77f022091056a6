"""What a user reads once the cluster serves: where it is, and how to call it."""

from __future__ import annotations

import json

from dualpath.cluster.invocation import command_on, program
from dualpath.cluster.record import ClusterRecord
from dualpath.kvstore.making import block_directory
from dualpath.settings import Settings


def curl_line(base_url: str, model: str, *, key: bool = False) -> str:
    """A request that works when pasted into a shell; with `key`, where that has one as OPENAI_API_KEY."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 32,
            "temperature": 0,
        }
    ).replace("'", "'\\''")
    headers = "-H 'Content-Type: application/json'"
    if key:
        headers += ' -H "Authorization: Bearer $OPENAI_API_KEY"'
    return f"curl {base_url}/chat/completions {headers} -d '{body}'"


def _where_blocks_are(settings: Settings) -> str:
    match settings.store:
        case "shards":
            return f"{settings.shards} storage shard{'s' if settings.shards > 1 else ''}"
        case "directory":
            return f"blocks in {block_directory(settings)}"
        case "s3":
            return f"blocks in bucket {settings.store_s3_bucket}"


def welcome(record: ClusterRecord, settings: Settings) -> str:
    urls = record.base_urls
    shape = (
        f"mode {record.mode}, {settings.prefill} prefill + {settings.decode} decode "
        f"({settings.engines} engine{'s' if settings.engines > 1 else ''} each), "
        f"{_where_blocks_are(settings)}"
    )
    lines = [
        "",
        f"DualPath serves {record.model} at {' and '.join(urls)}",
        f"({shape}).",
        "Ctrl-C stops it. From another terminal:",
        "",
        f"  {curl_line(urls[0], record.model, key=bool(settings.api_keys))}",
        "",
        f"  {program()} chat --url {urls[0]}",
        f"  {command_on(settings.home, 'status')}",
        f"  {command_on(settings.home, 'down')}",
        "",
    ]
    return "\n".join(lines)
