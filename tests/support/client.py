"""Token-id requests against a synthetic cluster, checked against the oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import httpx
from tests.support.cluster import LocalCluster

from dualpath.model.spec import ModelSpec, load_spec
from dualpath.model.synthetic_kv import reference_tokens
from dualpath.settings import load_settings
from dualpath.wire.types import Sampling


def spec_of(cluster: LocalCluster) -> ModelSpec:
    """The model as the cluster's own processes know it."""
    return load_spec(load_settings(cluster.home / "run" / "settings.json"))


def prompt(n: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(300, 30_000) for _ in range(n)]


def oracle(spec: ModelSpec, ids: list[int], n: int) -> list[int]:
    return reference_tokens(spec, ids, n, Sampling(max_tokens=n, seed=0))


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    finish: str
    cached_tokens: int
    explain: dict[str, Any]


async def complete(
    client: httpx.AsyncClient, cluster: LocalCluster, ids: list[int], n: int
) -> Answer:
    """Greedy, exactly `n` tokens. Raises httpx.HTTPStatusError for anything but 200."""
    response = await client.post(
        f"{cluster.base_url}/completions",
        json={
            "model": cluster.model,
            "prompt": ids,
            "max_tokens": n,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        },
        headers={"X-DualPath-Explain": "1"},
    )
    if response.is_error:
        raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
    body = response.json()
    choice = body["choices"][0]
    return Answer(
        choice["token_ids"],
        choice["finish_reason"],
        body["usage"]["prompt_tokens_details"]["cached_tokens"],
        body["dualpath"],
    )
