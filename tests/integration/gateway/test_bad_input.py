"""Requests that are wrong: refused in OpenAI's shape, by name, without a word to the scheduler."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.integration.gateway.cluster import answering
from tests.integration.gateway.conftest import MAX_BODY, MAX_CONTEXT, Harness

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def check_error(response: httpx.Response, status: int, param: str | None, word: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert word in error["message"], error
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")


BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "Hi"}, "messages", "list"),
    ({"messages": None}, "messages", "list"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "system"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "tool_call_id"),
    ({"messages": [{"role": "user"}]}, "messages[0]", "needs content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0]", "needs content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        "only parts",
    ),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].function",
        "required",
    ),
    ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour", "known"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
    ({"max_tokens": -1}, "max_tokens", "greater"),
    ({"max_tokens": "5"}, "max_tokens", "integer"),
    ({"max_tokens": 5.0}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"max_tokens": MAX_CONTEXT}, "messages", str(MAX_CONTEXT)),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": -0.1}, "temperature", "greater"),
    ({"temperature": 2.1}, "temperature", "less"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"top_p": 1.5}, "top_p", "less"),
    ({"top_k": -2}, "top_k", "greater"),
    ({"seed": 1 << 63}, "seed", "less"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most 8"),
    ({"stop_token_ids": [400]}, "stop_token_ids", "399"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater"),
    ({"logprobs": 2}, "logprobs", "boolean"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"stream": "yes"}, "stream", "boolean"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "known parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema exactly"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"not": {}}},
            }
        },
        "response_format",
        "Unimplemented",
    ),
    ({"response_format": {"type": "json_object"}, "min_tokens": 5}, "min_tokens", "end"),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "end"),
    ({"n": 0}, "n", "greater"),
    ({"n": 129}, "n", "128"),
    ({"n": True}, "n", "integer"),
    ({"stop": ""}, "stop", "1 to 256"),
    ({"stop": ["x", ""]}, "stop", "1 to 256"),
    ({"stop": ["x"] * 5}, "stop", "4 strings"),
    ({"stop": [5]}, "stop", "string"),
    ({"stop": "x" * 257}, "stop", "1 to 256"),
    ({"min_p": 1.5}, "min_p", "less"),
    ({"presence_penalty": 2.5}, "presence_penalty", "less"),
    ({"frequency_penalty": -3}, "frequency_penalty", "greater"),
    ({"repetition_penalty": 0}, "repetition_penalty", "greater"),
    ({"logit_bias": {"400": 1}}, "logit_bias", "399"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "less"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    ({"priority": 0.5}, "priority", "integer"),
    ({"temprature": 1}, "temprature", "known parameter"),
    ({"user": 5}, "user", "string"),
    ({"model": 5}, "model", "string"),
    ({"model": None}, "model", "string"),
]


async def test_wrong_chat_parameters_are_refused_by_name(harness: Harness) -> None:
    for fields, param, word in BAD_CHATS:
        body = {"model": "synthetic", "messages": MESSAGES} | fields
        check_error(await harness.http.post(CHAT, json=body), 400, param, word)
    check_error(
        await harness.http.post(CHAT, json={"messages": MESSAGES}), 400, "model", "required"
    )
    assert harness.cluster.submits == []
    assert harness.cluster.cancelled == []


BAD_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "text, a list"),
    ({"prompt": ""}, "prompt", "at least one"),
    ({"prompt": []}, "prompt", "at least one"),
    ({"prompt": ["a", ""]}, "prompt", "at least one"),
    ({"prompt": [[1], 2]}, "prompt", "list of such"),
    ({"prompt": [1, "a"]}, "prompt", "integers"),
    ({"prompt": ["a"] * 65, "n": 2}, "n", "128"),
    ({"prompt": [1, True]}, "prompt", "integers"),
    ({"prompt": [1, 2.5]}, "prompt", "integers"),
    ({"prompt": [400]}, "prompt", "0 to 399"),
    ({"prompt": [-1]}, "prompt", "0 to 399"),
    ({"prompt": [1 << 40]}, "prompt", "0 to 399"),
    ({"prompt": [1] * MAX_CONTEXT}, "prompt", f"has {MAX_CONTEXT}"),
    ({"prompt": "x" * (MAX_CONTEXT + 1)}, "prompt", f"context is {MAX_CONTEXT}"),
    ({"max_tokens": 0}, "max_tokens", "asks for nothing"),
    ({"max_tokens": -1, "echo": True}, "max_tokens", "greater than or equal to 0"),
    ({"echo": True, "logprobs": 21}, "logprobs", "20"),
    ({"suffix": "x"}, "suffix", "not supported"),
    ({"best_of": 2}, "best_of", "not supported"),
    ({"logprobs": True}, "logprobs", "integer"),
    ({"messages": MESSAGES}, "messages", "known parameter"),
]


async def test_wrong_completion_parameters_are_refused_by_name(harness: Harness) -> None:
    for fields, param, word in BAD_COMPLETIONS:
        body = {"model": "synthetic", "prompt": "Hi"} | fields
        check_error(await harness.http.post(COMPLETIONS, json=body), 400, param, word)
    assert harness.cluster.submits == []


async def test_parameters_that_ask_for_nothing_are_taken(harness: Harness) -> None:
    harness.cluster.script = answering("ok")
    harmless: dict[str, Any] = {
        "n": 1, "stop": None, "tools": [], "tool_choice": "auto", "presence_penalty": 0,
        "frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"},
        "user": "me", "max_tokens": None, "temperature": None, "top_p": None, "seed": None,
        "stream": None, "stream_options": None, "logprobs": None, "min_tokens": None, "top_k": -1,
        "parallel_tool_calls": True, "service_tier": "auto",
    }  # fmt: skip
    said: dict[str, Any] = {
        "role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": None,
    }  # fmt: skip
    parts = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
    body = {"model": "synthetic", "messages": [parts, *MESSAGES, said, *MESSAGES]} | harmless
    response = await harness.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    (submit,) = harness.cluster.submits
    assert submit.sampling.top_k == 0
    assert submit.sampling.max_tokens == MAX_CONTEXT - submit.prompt_tokens


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
async def test_malformed_json_is_400(harness: Harness, body: bytes) -> None:
    check_error(await harness.http.post(CHAT, content=body), 400, None, "body")
    assert harness.cluster.submits == []


async def test_an_unknown_model_is_404(harness: Harness) -> None:
    body = {"model": "gpt-5", "messages": MESSAGES}
    response = await harness.http.post(CHAT, json=body)
    check_error(response, 404, "model", "synthetic")
    assert response.json()["error"]["code"] == "model_not_found"
    check_error(await harness.http.get("/v1/models/gpt-5"), 404, "model", "gpt-5")


async def test_an_over_long_prompt_says_limit_and_count(harness: Harness) -> None:
    body = {"model": "synthetic", "prompt": [1] * (MAX_CONTEXT + 17)}
    response = await harness.http.post(COMPLETIONS, json=body)
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert str(MAX_CONTEXT + 17) in response.json()["error"]["message"]
    assert harness.cluster.submits == []


async def test_the_longest_prompt_that_fits_is_served(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    body = {"model": "synthetic", "prompt": [1] * (MAX_CONTEXT - 1)}
    assert (await harness.http.post(COMPLETIONS, json=body)).status_code == 200
    assert harness.cluster.submits[0].sampling.max_tokens == 1


async def test_a_body_beyond_the_limit_is_413_while_it_is_read(harness: Harness) -> None:
    big = json.dumps({"model": "synthetic", "prompt": "x" * MAX_BODY}).encode()
    check_error(await harness.http.post(COMPLETIONS, content=big), 413, None, str(MAX_BODY))

    async def chunks(total: int) -> AsyncIterator[bytes]:
        for _ in range(total // 65536):
            yield b"x" * 65536

    chunked = await harness.http.post(COMPLETIONS, content=chunks(4 * MAX_BODY))
    check_error(chunked, 413, None, str(MAX_BODY))
    assert chunked.headers["connection"] == "close"
    # A body without end is not read to its end.
    with contextlib.suppress(httpx.TransportError):
        endless = await harness.http.post(COMPLETIONS, content=chunks(1 << 40))
        check_error(endless, 413, None, str(MAX_BODY))
    assert (await harness.http.get("/v1/models")).status_code == 200


async def test_unknown_paths_and_methods_are_told_in_the_same_shape(harness: Harness) -> None:
    check_error(await harness.http.get("/v1/embeddings"), 404, None, "/v1/embeddings")
    check_error(await harness.http.get(CHAT), 405, None, "not allowed")
    check_error(await harness.http.post("/v1/models", json={}), 405, None, "not allowed")
