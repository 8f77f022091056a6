"""The Responses API through the official client."""

from __future__ import annotations

import hashlib
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam
from tests.integration.gateway.cluster import STATS, FakeCluster, answering
from tests.integration.gateway.conftest import Harness
from tests.integration.gateway.test_surface import HARD, speaking
from tests.integration.gateway.test_tools import CALL, ending

from dualpath.wire import control
from dualpath.wire.types import Sampled

TOOL: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}


def recording(prompts: list[str], answer: str) -> Any:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        ids = await cluster.prompt(submit)
        prompts.append(bytes(token for token in ids if token < 256).decode())
        await ending(answer)(cluster, submit)

    return script


async def test_a_response_whole(harness: Harness) -> None:
    prompts: list[str] = []
    harness.cluster.script = recording(prompts, HARD)
    answer = await harness.openai.responses.create(
        model="synthetic", input="Hi", instructions="Be brief.", max_output_tokens=99
    )
    assert (answer.status, answer.output_text) == ("completed", HARD)
    assert prompts[0].index("Be brief.") < prompts[0].index("Hi")
    assert harness.cluster.submits[0].sampling.max_tokens == 99
    assert answer.usage is not None
    assert answer.usage.output_tokens == len(HARD.encode()) + 1
    assert answer.usage.input_tokens_details.cached_tokens == min(64, answer.usage.input_tokens)
    again = await harness.openai.responses.retrieve(answer.id)
    assert again == answer


async def test_the_events_of_a_stream_build_the_same_object(harness: Harness) -> None:
    harness.cluster.script = speaking(HARD)
    stream = await harness.openai.responses.create(model="synthetic", input="Hi", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == HARD
    assert not any("\ufffd" in delta for delta in deltas)
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == HARD
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    # The client's own accumulation agrees.
    async with harness.openai.responses.stream(model="synthetic", input="Hi") as helper:
        async for _ in helper:
            pass
    assert await harness.openai.responses.retrieve(last.response.id) == last.response


async def test_calls_and_their_results_go_round(harness: Harness) -> None:
    prompts: list[str] = []
    harness.cluster.script = recording(prompts, f"Let me see. {CALL}")
    create = harness.openai.responses.create
    first = await create(model="synthetic", input="Seoul?", tools=[TOOL])
    message, call = first.output
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", '{"city": "서울"}')
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    harness.cluster.script = recording(prompts, "Sunny.")
    second = await create(
        model="synthetic", input=[result], tools=[TOOL], previous_response_id=first.id
    )
    assert second.output_text == "Sunny."
    # What the model said is what it is reminded of, to the byte.
    assert prompts[1].startswith(f"{prompts[0]}Let me see. {CALL}")
    by_hand: list[Any] = [
        {"role": "user", "content": "Seoul?"},
        *[item.model_dump(exclude_none=True) for item in first.output],
        result,
    ]
    await create(model="synthetic", input=by_hand, tools=[TOOL])
    assert prompts[2] == prompts[1]


async def test_streamed_calls_have_events_of_their_own(harness: Harness) -> None:
    harness.cluster.script = ending(CALL)
    stream = await harness.openai.responses.create(
        model="synthetic", input="Seoul?", tools=[TOOL], stream=True
    )
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    arguments = '{"city": "서울"}'
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        # As they are generated, but for bytes that are no characters yet.
        *["response.function_call_arguments.delta"] * len(arguments),
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert {getattr(event, "output_index", 0) for event in events} == {0}
    added: Any = events[2]
    assert (added.item.status, added.item.arguments) == ("in_progress", "")
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == arguments
    done: Any = events[-3]
    assert done.arguments == arguments
    last: Any = events[-1]
    assert (last.response.output[0].arguments, last.response.output[0].status) == (
        arguments,
        "completed",
    )


async def test_a_call_that_is_cut_off_is_incomplete(harness: Harness) -> None:
    harness.cluster.script = answering(CALL[:52])
    stream = await harness.openai.responses.create(
        model="synthetic", input="Seoul?", tools=[TOOL], stream=True
    )
    last: Any = [event async for event in stream][-1]
    (call,) = last.response.output
    assert (last.response.status, call.status) == ("incomplete", "incomplete")
    assert call.arguments
    assert CALL[:52].endswith(call.arguments)


async def test_text_after_a_call_comes_after_it(harness: Harness) -> None:
    harness.cluster.script = ending(f"One. {CALL} Two.")
    answer = await harness.openai.responses.create(model="synthetic", input="x", tools=[TOOL])
    assert [item.type for item in answer.output] == ["message", "function_call", "message"]
    assert answer.output_text == "One.Two."


async def test_a_conversation_goes_on_from_a_response(harness: Harness) -> None:
    prompts: list[str] = []
    harness.cluster.script = recording(prompts, "Blue.")
    create = harness.openai.responses.create
    first = await create(model="synthetic", input="A colour?", instructions="Rhyme.")
    second = await create(model="synthetic", input="Another?", previous_response_id=first.id)
    assert "A colour?" in prompts[1]
    assert "Blue." in prompts[1]
    assert "Rhyme." not in prompts[1], "instructions hold for one response"
    await create(model="synthetic", input="A third?", previous_response_id=second.id)
    assert prompts[2].startswith(prompts[1])


async def test_responses_that_were_not_stored_or_are_deleted_are_not_known(
    harness: Harness,
) -> None:
    harness.cluster.script = answering("x")
    responses = harness.openai.responses
    kept = await responses.create(model="synthetic", input="a")
    passing = await responses.create(model="synthetic", input="a", store=False)
    await responses.delete(kept.id)
    for gone in (kept.id, passing.id, "resp_x"):
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            await responses.create(model="synthetic", input="b", previous_response_id=gone)


KEYS = tuple(f"{key}={hashlib.sha256(key.encode()).hexdigest()}" for key in ("ann", "bob"))


@pytest.mark.parametrize("gateway_settings", [{"api_keys": KEYS}], indirect=True)
async def test_nobody_sees_another_tenants_responses(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    ann, bob = (harness.openai.with_options(api_key=key).responses for key in ("ann", "bob"))
    mine = await ann.create(model="synthetic", input="a")
    assert (await ann.retrieve(mine.id)).id == mine.id
    with pytest.raises(openai.NotFoundError):
        await bob.retrieve(mine.id)
    with pytest.raises(openai.NotFoundError):
        await bob.delete(mine.id)


@pytest.mark.parametrize("gateway_settings", [{"response_memory": 5000}], indirect=True)
async def test_the_oldest_responses_are_forgotten(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    ids = [
        (await harness.openai.responses.create(model="synthetic", input="a")).id for _ in "1234567"
    ]
    assert (await harness.openai.responses.retrieve(ids[-1])).id == ids[-1]
    with pytest.raises(openai.NotFoundError):
        await harness.openai.responses.retrieve(ids[0])


async def test_log_probabilities_come_with_the_text(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        assert submit.sampling.top_logprobs == 1
        for index, byte in enumerate(b"ab"):
            await cluster.say(submit, index, [Sampled(byte, -1.0, ((byte, -1.0),))])
        await cluster.say(submit, 2, [], "stop")

    harness.cluster.script = script
    answer = await harness.openai.responses.create(
        model="synthetic", input="x", top_logprobs=1, include=["message.output_text.logprobs"]
    )
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert [entry.token for entry in part.logprobs or []] == ["a", "b"]


async def test_a_failure_in_mid_stream_is_raised_and_completes_nothing(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"so far"], stats=STATS)
        await cluster.lose(submit, code="internal", retry=False)

    harness.cluster.script = script
    stream = await harness.openai.responses.create(model="synthetic", input="x", stream=True)
    kinds = []

    async def read() -> None:
        async for event in stream:
            kinds.append(event.type)

    with pytest.raises(openai.APIError, match="given up"):
        await read()
    assert kinds[-1] == "response.output_text.delta"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1 << 20}, "input"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format"),
        ({"temperature": 3}, "temperature"),
        ({"temprature": 1}, "temprature"),
        ({"n": 2}, "n"),
        ({"model": None}, "model"),
    ],
)  # fmt: skip
async def test_wrong_parameters_are_refused_by_name(
    harness: Harness, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "synthetic", "input": "x"} | fields
    response = await harness.http.post("/v1/responses", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param, response.text
    assert harness.cluster.submits == []
