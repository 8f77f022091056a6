"""What a real OpenAI client gets."""

from __future__ import annotations

import pytest
from openai import APIError
from openai.types.chat import ChatCompletionUserMessageParam
from tests.integration.gateway.cluster import STATS, FakeCluster, answering
from tests.integration.gateway.conftest import MAX_CONTEXT, Harness

from dualpath.blocks import BlockKeys, pack_keys, root_key
from dualpath.model.bytelevel import END_ID
from dualpath.wire import control
from dualpath.wire.types import Sampled

HARD = "한국어 👩‍👩‍👧‍👦 e\u0301 ok"
HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hi"}]
PROMPT = b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


async def test_a_chat_is_answered_whole(harness: Harness) -> None:
    prompts = []

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        prompts.append(await cluster.prompt(submit))
        await answering(HARD)(cluster, submit)

    harness.cluster.script = script
    answer = await harness.openai.chat.completions.create(model="synthetic", messages=HI)
    assert answer.choices[0].message.content == HARD
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(HARD.encode())
    assert answer.usage.prompt_tokens == len(prompts[0])
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == min(64, len(prompts[0]))
    (submit,) = harness.cluster.submits
    assert (submit.gateway_id, submit.attempt.number, submit.generated) == ("gateway-0", 1, 0)
    assert submit.sampling.temperature == 1.0
    assert submit.sampling.max_tokens == MAX_CONTEXT - len(prompts[0])
    assert submit.sampling.stop_ids == (END_ID,)
    await harness.idle()
    assert harness.cluster.cancelled == []


async def test_block_keys_and_pages_are_those_of_the_prompt(harness: Harness) -> None:
    ids = [(7 * i) % 256 for i in range(1000)]
    pages = []

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        pages.append(await cluster.prompt(submit))
        await answering("x")(cluster, submit)

    harness.cluster.script = script
    await harness.openai.completions.create(model="synthetic", prompt=ids)
    (submit,) = harness.cluster.submits
    keys = BlockKeys(root_key(harness.spec.fingerprint), harness.settings.block_tokens)
    keys.extend(ids)
    assert pages == [ids]
    assert (submit.root, submit.keys) == (keys.root, pack_keys(keys.keys))
    assert submit.prompt_tokens == 1000
    assert submit.sampling.max_tokens == 16


async def test_a_salt_separates_the_keys_of_tenants(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        await harness.openai.completions.create(
            model="synthetic", prompt="p" * 200, extra_body=salt
        )
    assert len({submit.keys for submit in harness.cluster.submits}) == 3


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_is_the_same_text_without_replacement_characters(
    harness: Harness, usage: bool
) -> None:
    harness.cluster.script = answering(HARD)
    stream = await harness.openai.chat.completions.create(
        model="synthetic", messages=HI, stream=True, stream_options={"include_usage": usage}
    )
    chunks = [chunk async for chunk in stream]
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == HARD
    assert not any("\ufffd" in text for text in texts)
    assert chunks[0].choices[0].delta.role == "assistant"
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finishes == [None] * (len(finishes) - 1) + ["length"]
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    if usage:
        (last,) = with_usage
        assert last is chunks[-1]
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == len(HARD.encode())
    else:
        assert with_usage == []


async def test_the_stop_token_ends_the_answer_without_being_in_it(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"ok"])
        await cluster.say(submit, 2, [ord("!")], "stop")

    harness.cluster.script = script
    for _ in range(2):
        answer = await harness.openai.completions.create(
            model="synthetic",
            prompt="p",
            extra_body={"stop_token_ids": [ord("!")], "ignore_eos": True, "return_token_ids": True},
        )
        assert answer.choices[0].text == "ok"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].model_extra == {
            "prompt_token_ids": [ord("p")],
            "token_ids": [*b"ok!"],
        }
    assert harness.cluster.submits[0].sampling.stop_ids == (ord("!"),)


async def test_log_probabilities_of_every_token_arrive_whole_and_streamed(
    harness: Harness,
) -> None:
    tokens = [
        Sampled(byte, -0.5 * i, ((byte, -0.5 * i), (97, -9.0)))
        for i, byte in enumerate("é!".encode())
    ]

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        assert submit.sampling.top_logprobs == 2
        for index, token in enumerate(tokens):
            await cluster.say(submit, index, [token])
        await cluster.say(submit, len(tokens), [], "length")

    harness.cluster.script = script
    chat = harness.openai.chat.completions
    whole = await chat.create(model="synthetic", messages=HI, logprobs=True, top_logprobs=2)
    assert whole.choices[0].logprobs is not None
    entries = whole.choices[0].logprobs.content
    assert entries is not None
    assert [entry.logprob for entry in entries] == [0.0, -0.5, -1.0]
    assert [entry.bytes for entry in entries] == [[0xC3], [0xA9], [0x21]]
    assert entries[2].top_logprobs[1].token == "a"
    streamed = []
    async for chunk in await chat.create(
        model="synthetic", messages=HI, logprobs=True, top_logprobs=2, stream=True
    ):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert streamed == entries
    completion = await harness.openai.completions.create(model="synthetic", prompt="p", logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs.text_offset == [0, 0, 1]


async def test_explain_comes_with_the_last_event(harness: Harness) -> None:
    harness.cluster.script = answering("hi")
    headers = {"X-DualPath-Explain": "1"}
    chat = harness.openai.chat.completions
    whole = await chat.create(model="synthetic", messages=HI, extra_headers=headers)
    plain = await chat.create(model="synthetic", messages=HI)
    assert not plain.model_extra
    chunks = [
        chunk
        async for chunk in await chat.create(
            model="synthetic", messages=HI, stream=True, extra_headers=headers
        )
    ]
    assert [bool(chunk.model_extra) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    for answer in (whole, chunks[-1]):
        assert answer.model_extra is not None
        explained = answer.model_extra["dualpath"]
        assert answer.id == f"chatcmpl-{explained['request_id']}"
        assert explained["read_path"] == STATS.read_path
        assert explained["hit_tokens"] == 64
        assert explained["bytes_read"] == {"prefill": 1000, "decode": 2000}
        assert explained["attempts"] == 1
        assert explained["prefill_node"] == "prefill-0"
        assert {"tokenize", "match", "submit", "ttft", "queued", "decode"} <= set(
            explained["timings_s"]
        )


async def test_models_are_listed_and_found(harness: Harness) -> None:
    (listed,) = [model async for model in harness.openai.models.list()]
    found = await harness.openai.models.retrieve("synthetic")
    assert listed == found
    assert found.id == "synthetic"
    assert found.model_extra == {"max_model_len": MAX_CONTEXT}


async def test_an_error_in_a_stream_is_raised_and_has_no_finish_reason(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"so far"])
        await cluster.lose(submit, code="internal", retry=False)

    harness.cluster.script = script
    stream = await harness.openai.chat.completions.create(
        model="synthetic", messages=HI, stream=True
    )
    texts, finishes = [], []

    async def read() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content)
            finishes.append(chunk.choices[0].finish_reason)

    with pytest.raises(APIError, match="given up: the link broke"):
        await read()
    assert texts == ["so far"]
    assert finishes == [None]
