"""What went wrong at other servers' OpenAI surface, and must not here. Each through a real OpenAI client, whole and
streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from tests.integration.gateway.cluster import STATS, FakeCluster, answering
from tests.integration.gateway.conftest import Harness
from tests.support.wait import until

from dualpath.wire import control
from dualpath.wire.types import Sampled

HARD = "한국어 조합 ㅎㅏㄴ 👩‍👩‍👧‍👦 e\u0301 n\u0303 \U0001f1f0\U0001f1f7 ok"
HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hi"}]


def speaking(text: str) -> Callable[[FakeCluster, control.Submit], Coroutine[Any, Any, None]]:
    """Generates `text` byte by byte, each after the last was taken, and ends as a decode node does: at the text's
    end, or when it is told that the client has all that it wants."""
    data = text.encode()

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        def told() -> list[control.TokenAck]:
            return [ack for ack in cluster.acks if ack.attempt == submit.attempt]

        for said in range(submit.generated, len(data)):
            if any(ack.stop for ack in told()):
                await cluster.say(submit, said, [], "stop")
                return
            await cluster.say(submit, said, [data[said]])
            await until(partial(_has, told, said + 1))
        await cluster.say(submit, len(data), [], "length")

    return script


def _has(acks: Callable[[], list[control.TokenAck]], count: int) -> bool:
    return any(ack.next_index >= count for ack in acks())


async def streamed(
    harness: Harness, **fields: Any
) -> tuple[dict[int, str], dict[int, list[str]], list[Any]]:
    """Texts and finish reasons by choice, and all chunks, of a chat."""
    stream = await harness.openai.chat.completions.create(
        model="synthetic", messages=HI, stream=True, **fields
    )
    texts: dict[int, str] = {}
    finishes: dict[int, list[str]] = {}
    chunks = [chunk async for chunk in stream]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.finish_reason:
            finishes.setdefault(choice.index, []).append(choice.finish_reason)
    return texts, finishes, chunks


async def test_39_max_tokens_of_null_is_served_and_of_zero_refused(harness: Harness) -> None:
    harness.cluster.script = answering("ok")
    for path, prompt in (("chat/completions", {"messages": HI}), ("completions", {"prompt": "p"})):
        for value, status in ((None, 200), (0, 400)):
            body = {"model": "synthetic", "max_tokens": value, **prompt}
            response = await harness.http.post(f"/v1/{path}", json=body)
            assert response.status_code == status, response.text
            if status == 400:
                assert response.json()["error"]["param"] == "max_tokens"


async def test_40_a_character_split_over_tokens_is_sent_whole(harness: Harness) -> None:
    """A byte is a token here, so every character that is not ASCII is split."""
    harness.cluster.script = speaking(HARD)
    whole = await harness.openai.chat.completions.create(model="synthetic", messages=HI)
    texts, _, chunks = await streamed(harness)
    assert whole.choices[0].message.content == texts[0] == HARD
    assert not any("\ufffd" in (chunk.choices[0].delta.content or "") for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "stops", "shown", "finish"),
    [
        ("ab STOP and more", ["STOP"], "ab ", "stop"),
        ("ab STO, not a stop", ["STOP"], "ab STO, not a stop", "length"),
        ("ends with STO", ["STOP"], "ends with STO", "length"),
        ("aaab and more", ["aab"], "a", "stop"),
        ("한국어 👩 and more", ["어 👩"], "한국", "stop"),
        ("one two three", ["three", "two"], "one ", "stop"),
        ("STOP at once", "STOP", "", "stop"),
    ],
)
async def test_41_stop_strings_are_held_back_and_released_exactly(
    harness: Harness, text: str, stops: str | list[str], shown: str, finish: str
) -> None:
    harness.cluster.script = speaking(text)
    whole = await harness.openai.chat.completions.create(model="synthetic", messages=HI, stop=stops)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (shown, finish)
    texts, finishes, _ = await streamed(harness, stop=stops)
    assert (texts, finishes) == ({0: shown}, {0: [finish]})
    await harness.idle()
    # The request ended at its decode node as any other does: nothing had to be cancelled.
    assert harness.cluster.cancelled == []


async def test_41_usage_counts_tokens_up_to_the_stop_string(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"one two three"], "length")

    harness.cluster.script = script
    answer = await harness.openai.completions.create(model="synthetic", prompt="p", stop="two")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one ", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len("one two")


async def test_41_a_cluster_that_does_not_hear_of_the_stop_is_cancelled(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath.gateway.flights.STOP_S", 0.05)

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"one two"])

    harness.cluster.script = script
    answer = await harness.openai.completions.create(model="synthetic", prompt="p", stop="two")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one ", "stop")
    await until(lambda: harness.cluster.cancelled)


async def test_42_several_choices_arrive_each_whole_and_end_once(harness: Harness) -> None:
    words = ["first", "second one", "third 👩"]

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await speaking(words[submit.sampling.seed - 7])(cluster, submit)

    harness.cluster.script = script
    whole = await harness.openai.chat.completions.create(
        model="synthetic", messages=HI, n=3, seed=7
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert [choice.message.content for choice in whole.choices] == words
    texts, finishes, chunks = await streamed(
        harness, n=3, seed=7, stream_options={"include_usage": True}
    )
    assert texts == dict(enumerate(words))
    assert finishes == {index: ["length"] for index in range(3)}
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(len(word.encode()) for word in words)
    assert len({chunk.id for chunk in chunks}) == 1
    roles = [c.index for chunk in chunks for c in chunk.choices if c.delta.role]
    assert sorted(roles) == [0, 1, 2]


async def test_42_prompts_of_a_list_are_answered_in_their_order(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        prompt = bytes(await cluster.prompt(submit)).decode()
        await answering(f"{prompt}!{submit.sampling.seed}")(cluster, submit)

    harness.cluster.script = script
    answer = await harness.openai.completions.create(
        model="synthetic", prompt=["one", "two"], n=2, seed=5, echo=True
    )
    texts = [choice.text for choice in answer.choices]
    assert texts == ["oneone!5", "oneone!6", "twotwo!5", "twotwo!6"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("onetwo")


async def test_42_a_choice_that_fails_ends_all_with_an_error(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if submit.sampling.seed == 8:
            await cluster.lose(submit, code="internal", retry=False)

    harness.cluster.script = script
    body = {"model": "synthetic", "messages": HI, "n": 3, "seed": 7}
    response = await harness.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 500
    await harness.idle()
    await until(lambda: len(harness.cluster.cancelled) == len(harness.cluster.submits) - 1)


@pytest.mark.parametrize("usage", [None, False, True])
async def test_43_usage_comes_once_at_the_end_where_it_was_asked_for(
    harness: Harness, usage: bool | None
) -> None:
    harness.cluster.script = speaking("abc")
    options = {} if usage is None else {"stream_options": {"include_usage": usage}}
    _, _, chunks = await streamed(harness, **options)
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert with_usage == (chunks[-1:] if usage else [])
    if usage:
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3)


async def test_44_the_first_tokens_log_probability_is_not_lost(harness: Harness) -> None:
    """The first token comes from the prefill node, the others from the decode node."""

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        for index, byte in enumerate(b"abc"):
            token = Sampled(byte, -1.0 - index, ((byte, -1.0 - index),))
            await cluster.say(submit, index, [token], node="prefill-0" if index == 0 else None)
        await cluster.say(submit, 3, [], "length")

    harness.cluster.script = script
    _, _, chunks = await streamed(harness, logprobs=True, top_logprobs=1)
    entries = [
        entry.logprob
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert entries == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("stop", [None, "c"])
async def test_45_cached_tokens_are_told_however_the_answer_ends(
    harness: Harness, stop: str | None
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        # The figures are known with the first token; the last event may never come.
        await cluster.say(submit, 0, [*b"a"], stats=STATS)
        await cluster.say(submit, 1, [*b"bc"], None if stop else "length")
        if stop:
            await until(lambda: any(ack.stop for ack in cluster.acks))
            await cluster.lose(submit)

    harness.cluster.script = script
    answer = await harness.openai.completions.create(model="synthetic", prompt="p" * 100, stop=stop)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == STATS.hit_tokens


# ── errors ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("code", ["transfer", "node_lost", "unheld", "storage"])
async def test_attempts_that_dead_peers_used_up_are_a_503_to_come_back_after(
    harness: Harness, code: str
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.lose(submit, code=code)

    harness.cluster.script = script
    response = await harness.http.post(
        "/v1/completions", json={"model": "synthetic", "prompt": "p"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (503, code)
    assert response.headers["retry-after"]


async def test_a_fault_of_the_gateway_in_mid_stream_is_an_error_event_and_the_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"a"])
        await asyncio.wait_for(broken.wait(), 60)
        await cluster.say(submit, 1, [*b"b"])

    broken = asyncio.Event()
    harness.cluster.script = script
    body = {"model": "synthetic", "prompt": "p", "stream": True}
    async with harness.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.aiter_lines()
        assert '"text":"a"' in await anext(lines)

        def fail(*_: object) -> bool:
            raise RuntimeError("a bug")

        monkeypatch.setattr("dualpath.gateway.answers.AnswerFormat.says_something", fail)
        broken.set()
        rest = [line async for line in lines if line]
    assert len(rest) == 1
    assert httpx.Response(200, text=rest[0].removeprefix("data: ")).json()["error"]["code"] == (
        "internal"
    )
    await harness.idle()


async def test_priority_reaches_the_scheduler(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    for more in ({}, {"priority": -3}):
        body = {"model": "synthetic", "prompt": "p", **more}
        assert (await harness.http.post("/v1/completions", json=body)).status_code == 200
    assert [submit.priority for submit in harness.cluster.submits] == [0, -3]
