"""A prompt comes back with the log-probabilities of its tokens, through the official client."""

from __future__ import annotations

import json

import pytest
from tests.integration.gateway.cluster import FakeCluster
from tests.integration.gateway.conftest import Harness

from dualpath.wire import control
from dualpath.wire.types import Sampled

PROMPT = "aé!"
"""Of four tokens, for there is one for each byte."""
TOP = [(98, -0.25), (97, -1.5)]


async def scoring(cluster: FakeCluster, submit: control.Submit) -> None:
    """Loses the first attempt, half of whose prompt was scored; says everything twice in the second, in two parts."""
    assert submit.sampling.prompt_logprobs
    assert submit.hit_blocks_estimate == 0
    if submit.attempt.number == 1:
        assert isinstance(await cluster.score(submit, 1, [-7.0, -7.0], TOP), control.Ok)
        await cluster.lose(submit)
        return
    late = await cluster.score(submit, 3, [-3.0], TOP)
    assert isinstance(late, control.Refused)
    for _ in range(2):
        assert isinstance(await cluster.score(submit, 1, [-1.0, -2.0], TOP), control.Ok)
    assert isinstance(await cluster.score(submit, 3, [-3.0], TOP), control.Ok)
    assert isinstance(await cluster.score(submit, 4, [-4.0], TOP), control.Refused)
    token = Sampled(ord("?"), -0.5, ((ord("?"), -0.5),))
    await cluster.say(submit, 0, [token], "length")


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_the_prompt_and_then_the_answer_have_log_probabilities(
    harness: Harness, max_tokens: int
) -> None:
    harness.cluster.script = scoring
    create = harness.openai.completions.create
    answer = await create(
        model="synthetic", prompt=PROMPT, echo=True, logprobs=1, max_tokens=max_tokens
    )
    (choice,) = answer.choices
    found = choice.logprobs
    assert found is not None
    generated = "?" * max_tokens
    assert (choice.text, choice.finish_reason) == (PROMPT + generated, "length")
    assert found.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "!", *generated]
    assert found.text_offset == [0, 1, 1, 2, 3][: 4 + max_tokens]
    assert found.token_logprobs == [None, -1.0, -2.0, -3.0, -0.5][: 4 + max_tokens]
    # The best one, and the token itself.
    assert found.top_logprobs == [
        *(None, {"b": -0.25, "bytes:\\xc3": -1.0}, {"b": -0.25, "bytes:\\xa9": -2.0}),
        *({"b": -0.25, "!": -3.0}, {"?": -0.5})[: 1 + max_tokens],
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    text, logprobs, finishes = "", list[float | None](), []
    async for chunk in await create(
        model="synthetic", prompt=PROMPT, echo=True, logprobs=1, max_tokens=max_tokens, stream=True
    ):
        text += chunk.choices[0].text
        finishes.append(chunk.choices[0].finish_reason)
        if chunk.choices[0].logprobs is not None:
            logprobs += chunk.choices[0].logprobs.token_logprobs or []
    assert (text, logprobs) == (choice.text, found.token_logprobs)
    assert finishes == [None] * (len(finishes) - 1) + ["length"]


async def test_a_later_attempt_after_the_first_token_may_read_the_prompt(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if submit.attempt.number == 1:
            await cluster.score(submit, 1, [-1.0, -2.0, -3.0], TOP)
            await cluster.say(submit, 0, [Sampled(ord("o"), -0.5)])
            await cluster.lose(submit)
        else:
            await cluster.say(submit, 1, [Sampled(ord("k"), -0.5)], "length")

    harness.cluster.script = script
    answer = await harness.openai.completions.create(
        model="synthetic", prompt=PROMPT, echo=True, logprobs=0
    )
    assert answer.choices[0].text == f"{PROMPT}ok"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs == [None, -1.0, -2.0, -3.0, -0.5, -0.5]
    wanted = [submit.sampling.prompt_logprobs for submit in harness.cluster.submits]
    assert wanted == [True, False]


async def test_a_token_without_its_prompt_s_log_probabilities_is_an_error(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [Sampled(ord("o"), -0.5)], "length")

    harness.cluster.script = script
    body = {"model": "synthetic", "prompt": PROMPT, "echo": True, "logprobs": 0}
    response = await harness.http.post("/v1/completions", json=body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal"


async def test_a_prompt_alone_comes_back_and_its_answer_is_nobody_s(harness: Harness) -> None:
    """Its one token would have ended the answer."""

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        assert (submit.sampling.max_tokens, submit.sampling.prompt_logprobs) == (1, False)
        await cluster.say(submit, 0, [ord("?")], "stop")

    harness.cluster.script = script
    answer = await harness.openai.completions.create(
        model="synthetic", prompt=[PROMPT, "b"], echo=True, max_tokens=0
    )
    assert [choice.text for choice in answer.choices] == [PROMPT, "b"]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_prompt_comes_back_whole(harness: Harness, stream: bool) -> None:
    """As one whose log-probabilities are written out beside other requests."""
    prompt = "ab" * 700

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        logprobs = [-float(number) for number in range(1, len(prompt))]
        assert isinstance(await cluster.score(submit, 1, logprobs, TOP), control.Ok)
        await cluster.say(submit, 0, [Sampled(ord("?"), -0.5)], "length")

    harness.cluster.script = script
    body = {"model": "synthetic", "prompt": prompt, "echo": True, "logprobs": 2, "stream": stream}
    response = await harness.http.post("/v1/completions", json=body)
    assert response.status_code == 200
    first = response.text.removeprefix("data: ").partition("\n")[0]
    choice = json.loads(first)["choices"][0]
    assert choice["text"].rstrip("?") == prompt
    found = choice["logprobs"]["token_logprobs"][: len(prompt)]
    assert found == [None, *(-float(number) for number in range(1, len(prompt)))]


async def test_more_log_probabilities_than_a_gateway_holds_are_refused(harness: Harness) -> None:
    body = {"model": "synthetic", "prompt": "a" * 2000, "echo": True, "logprobs": 20, "n": 128}
    response = await harness.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logprobs"
    assert not harness.cluster.submits
