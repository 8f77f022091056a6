"""The OpenAI Agents SDK, unmodified, over both of its APIs: it calls a function and goes on with the result."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tests.support.cluster import LocalCluster


@pytest.mark.parametrize("api", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_calls_a_function_and_answers(
    cluster: LocalCluster, api: Any, streamed: bool
) -> None:
    set_tracing_disabled(True)
    asked: list[str] = []

    @function_tool
    def weather(city: Literal["서울", "부산"]) -> str:
        asked.append(city)
        return "sunny"

    async with AsyncOpenAI(base_url=cluster.base_url, api_key="unused", max_retries=0) as client:
        agent = Agent(
            name="forecaster",
            instructions="Tell the weather.",
            tools=[weather],
            model=api(model=cluster.model, openai_client=client),
            # The synthetic engine never ends by itself: most of its words begin with a b.
            model_settings=ModelSettings(
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=400,
                include_usage=True,
                extra_body={"stop": [" b"], "seed": 3},
            ),
        )
        if streamed:
            run = Runner.run_streamed(agent, "How is it?", max_turns=3)
            kinds = [event.type async for event in run.stream_events()]
            assert "raw_response_event" in kinds
            answer, usage = run.final_output, run.context_wrapper.usage
        else:
            result = await Runner.run(agent, "How is it?", max_turns=3)
            answer, usage = result.final_output, result.context_wrapper.usage
    assert asked, "the function was called"
    assert asked[0] in ("서울", "부산")
    assert isinstance(answer, str)
    assert usage.requests == 2
    assert usage.input_tokens > 0
