"""Functions that a model calls, through the official client: whole, streamed, and back again."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletionToolParam
from tests.integration.gateway.cluster import FakeCluster, answering
from tests.integration.gateway.conftest import Harness
from tests.integration.gateway.test_surface import speaking

from dualpath.model.bytelevel import END_ID
from dualpath.wire import control

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]
ASK: list[Any] = [{"role": "user", "content": "How is it in Seoul?"}]
CALL = '<tool_call>{"name": "weather",   "arguments": {"city": "서울"}}</tool_call>'
"""With blanks that no template would write."""


def ending(text: str) -> Any:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        data = text.encode()
        for index, byte in enumerate(data):
            await cluster.say(submit, index, [byte])
        await cluster.say(submit, len(data), [END_ID], "stop")

    return script


async def test_calls_arrive_whole_and_streamed_with_their_indexes(harness: Harness) -> None:
    harness.cluster.script = ending(f"Let me see. {CALL}\n{CALL}")
    create = harness.openai.chat.completions.create
    whole = (await create(model="synthetic", messages=ASK, tools=TOOLS)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content == "Let me see."
    assert whole.message.tool_calls is not None
    assert [call.type for call in whole.message.tool_calls] == ["function"] * 2
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    ids, text, finishes, firsts = set(), "", list[str | None](), list[Any]()
    async for chunk in await create(model="synthetic", messages=ASK, tools=TOOLS, stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        finishes.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.id is not None:
                ids.add(call.id)
                firsts.append(call)
            else:
                assert (call.type, call.function.name) == (None, None)
                assert len(call.function.arguments or "") == 1, "as it is generated"
            names[call.index] = names.get(call.index, "") + (call.function.name or "")
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert text == "Let me see."
    assert names == {0: "weather", 1: "weather"}
    assert [arguments[n] for n in (0, 1)] == ['{"city": "서울"}'] * 2
    assert [
        call.function.arguments for call in whole.message.tool_calls if call.type == "function"
    ] == [*arguments.values()]
    assert [(c.index, c.type, c.function.name, c.function.arguments) for c in firsts] == [
        (number, "function", "weather", "") for number in (0, 1)
    ]
    assert len(ids) == 2
    assert finishes == [None] * (len(finishes) - 1) + ["tool_calls"]


async def test_the_template_gets_the_tools_unless_none_may_be_called(harness: Harness) -> None:
    prompts: list[str] = []

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        ids = await cluster.prompt(submit)
        prompts.append(bytes(token for token in ids if token < 256).decode())
        await answering(CALL)(cluster, submit)

    harness.cluster.script = script
    create = harness.openai.chat.completions.create
    offered = await create(model="synthetic", messages=ASK, tools=TOOLS)
    silent = await create(model="synthetic", messages=ASK, tools=TOOLS, tool_choice="none")
    assert ["weather" in prompt for prompt in prompts] == [True, False]
    assert offered.choices[0].message.tool_calls
    # Not stopped by the model: the finish reason is what it is.
    assert offered.choices[0].finish_reason == "length"
    assert (silent.choices[0].message.content, silent.choices[0].message.tool_calls) == (CALL, None)


async def test_one_call_only_ends_the_answer_where_no_others_are_wanted(harness: Harness) -> None:
    harness.cluster.script = speaking(f"{CALL}{CALL}")
    answer = await harness.openai.chat.completions.create(
        model="synthetic", messages=ASK, tools=TOOLS, parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    await harness.idle()
    assert harness.cluster.cancelled == []


@pytest.mark.parametrize("parallel", [None, False])
async def test_a_call_that_is_cut_off_is_told_as_far_as_it_came(
    harness: Harness, parallel: bool | None
) -> None:
    harness.cluster.script = answering(CALL[:52])
    wish: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
    create = harness.openai.chat.completions.create
    whole = (await create(model="synthetic", messages=ASK, tools=TOOLS, **wish)).choices[0]
    (cut,) = whole.message.tool_calls or []
    assert cut.type == "function"
    assert cut.function.arguments
    assert CALL[:52].endswith(cut.function.arguments)
    assert whole.finish_reason == "length"
    said = ""
    async for chunk in await create(
        model="synthetic", messages=ASK, tools=TOOLS, stream=True, **wish
    ):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            said += call.function.arguments or ""
    assert said == cut.function.arguments


async def test_what_only_looks_like_a_call_is_text(harness: Harness) -> None:
    harness.cluster.script = ending("<tool_call>no, never mind")
    answer = await harness.openai.chat.completions.create(
        model="synthetic", messages=ASK, tools=TOOLS
    )
    assert answer.choices[0].message.content == "<tool_call>no, never mind"
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("edited", [False, True])
async def test_a_call_that_is_sent_back_with_its_result_is_what_the_model_said(
    harness: Harness, edited: bool
) -> None:
    prompts: list[list[int]] = []

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        prompts.append(await cluster.prompt(submit))
        await ending(CALL if len(prompts) == 1 else "Fine.")(cluster, submit)

    harness.cluster.script = script
    create = harness.openai.chat.completions.create
    message = (await create(model="synthetic", messages=ASK, tools=TOOLS)).choices[0].message
    assert message.tool_calls
    said = message.model_dump(exclude_none=True)
    if edited:
        said["tool_calls"][0]["function"]["arguments"] = '{"city": "부산"}'
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages: list[Any] = [*ASK, said, result]
    answer = await create(model="synthetic", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "Fine."
    before = [*prompts[0], *CALL.encode(), END_ID]
    assert (prompts[1][: len(before)] == before) is not edited
    if edited:
        assert "부산".encode() in bytes(token for token in prompts[1] if token < 256)
