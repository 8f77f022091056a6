"""The `openai` package against a cluster with real (tiny) weights: what a user's first minutes look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
from tests.support.cluster import LocalCluster

TURN = "Please tell me something about storage, networks and memory. "


def client_of(cluster: LocalCluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.base_url, api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any]) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=16, temperature=0
    )


def cached(usage: openai.types.CompletionUsage | None) -> int:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def test_turns_hit_streams_equal_and_a_restarted_cluster_remembers(tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": TURN * 4}]
    cluster = LocalCluster(tmp_path, model="tiny", dtype="float32")
    try:
        client = client_of(cluster)
        assert [model.id for model in client.models.list()] == ["tiny"]
        first = ask(client, messages)
        assert cached(first.usage) == 0
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=messages,
                max_tokens=16,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == first.choices[0].message.content
        assert chunks[-1].usage is not None
        assert cached(chunks[-1].usage) > 0
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": TURN},
        ]
        second = ask(client, messages)
        assert cached(second.usage) >= 64
        cluster.until_idle()
    finally:
        assert cluster.stop() == 0
    cluster = LocalCluster(tmp_path, model="tiny", dtype="float32")
    try:
        # The gateway's memory of ids is gone, so the second turn is another prompt; the first is the same.
        again = ask(client_of(cluster), messages[:1])
        assert again.choices[0].message.content == first.choices[0].message.content
        assert cached(again.usage) >= 64
    finally:
        assert cluster.stop() == 0
