"""What clients see of a real cluster is the same whole and streamed, and its figures are right. A schema that knows
one answer only makes the synthetic engine say it, over prefill node, hand-over and decode node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import StartCluster
from tests.support.cluster import LocalCluster, until
from tests.support.collector import Collector, collector

HARD = "한국어 조합 👩‍👩‍👧‍👦 e\u0301 n\u0303 \U0001f1f0\U0001f1f7 ok"
EXPLAIN = {"X-DualPath-Explain": "1"}


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster, spans: Collector) -> LocalCluster:
    """Answers end when their blocks are stored, however slow the machine is."""
    return start_cluster(done_grace_s=30, otel_endpoint=spans.url)


def saying(value: Any) -> dict[str, Any]:
    """The parameter with which the only answer is `value` as JSON."""
    schema = {"name": "it", "schema": {"const": value}}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def chat(
    cluster: LocalCluster, messages: list[Any], headers: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    response = httpx.post(
        f"{cluster.base_url}/chat/completions",
        json={"model": cluster.model, "messages": messages, "max_tokens": 400, **more},
        headers=EXPLAIN | (headers or {}),
        timeout=60,
    )
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(cluster: LocalCluster, messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    """All chunks."""
    body = {"model": cluster.model, "messages": messages, "max_tokens": 400, "stream": True}
    with httpx.stream(
        "POST", f"{cluster.base_url}/chat/completions", json=body | more, timeout=60
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["delta"].get("content", "")
    return found


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("value", [HARD, {"text": HARD, "numbers": [1, 2.5, None]}])
def test_40_split_characters_and_json_arrive_whole(cluster: LocalCluster, value: Any) -> None:
    whole = chat(cluster, user("a"), **saying(value))["choices"][0]
    assert json.loads(whole["message"]["content"]) == value
    assert whole["finish_reason"] == "stop"
    chunks = streamed(cluster, user("a"), **saying(value))
    assert texts(chunks) == {0: whole["message"]["content"]}
    assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


def test_41_a_stop_string_in_a_split_character_ends_the_answer_before_it(
    cluster: LocalCluster,
) -> None:
    for stop, shown in (("국어 조", '"한'), ("👧", '"한국어 조합 👩‍👩‍'), ("never", None)):
        whole = chat(cluster, user("b"), stop=stop, **saying(HARD))["choices"][0]["message"]
        chunks = streamed(cluster, user("b"), stop=stop, **saying(HARD))
        expected = json.dumps(HARD, ensure_ascii=False) if shown is None else shown
        assert whole["content"] == texts(chunks)[0] == expected
        finishes = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
        assert finishes == [None] * (len(finishes) - 1) + ["stop"]


def test_42_several_choices_differ_and_are_the_same_each_time(cluster: LocalCluster) -> None:
    more: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 12, "ignore_eos": True}
    whole = chat(cluster, user("c"), **more)
    contents = {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert len(set(contents.values())) == 3
    assert texts(streamed(cluster, user("c"), **more)) == contents
    assert whole["usage"]["completion_tokens"] == 36


def test_44_every_token_has_its_log_probability(cluster: LocalCluster) -> None:
    more: dict[str, Any] = {
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 8,
        "ignore_eos": True,
        "seed": 1,
    }
    whole = chat(cluster, user("d"), **more)["choices"][0]["logprobs"]["content"]
    chunks = streamed(cluster, user("d"), **more)
    parts = [c["logprobs"]["content"] for x in chunks for c in x["choices"] if c["logprobs"]]
    assert [entry for part in parts for entry in part] == whole
    assert len(whole) == 8
    assert all(entry["logprob"] < 0 and len(entry["top_logprobs"]) == 2 for entry in whole)


def test_45_an_agents_next_turn_reads_the_blocks_that_its_answers_were_generated_in(
    cluster: LocalCluster,
) -> None:
    """Its answers are words, which no text is tokenized to."""
    block = 64
    messages = user("Tell me all. " * 20)
    before = 0
    for turn in range(3):
        answer = chat(
            cluster, messages, max_tokens=150, ignore_eos=True, seed=turn, return_token_ids=True
        )
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == before // block * block
        assert answer["dualpath"]["earlier_answers"]["known"] == turn
        # The last token has no KV-Cache yet when it is sampled.
        before = usage["prompt_tokens"] + usage["completion_tokens"] - 1
        content = answer["choices"][0]["message"]["content"]
        messages = [*messages, {"role": "assistant", "content": content}, *user(f"More? {turn}")]


def test_45_after_a_stop_string_the_next_turn_reads_all_blocks(cluster: LocalCluster) -> None:
    messages = user("Be short, but not too short. " * 10)
    more: dict[str, Any] = saying("a" * 200 + " stop " + "b" * 100)
    answer = chat(cluster, messages, stop="stop", **more)
    assert answer["choices"][0]["message"]["content"] == '"' + "a" * 200 + " "
    before = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"] - 5
    content = answer["choices"][0]["message"]["content"]
    messages = [*messages, {"role": "assistant", "content": content}, *user("Go on.")]
    again = chat(cluster, messages, max_tokens=2)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == before // 64 * 64


def test_a_forced_call_and_its_way_back_through_a_real_cluster(cluster: LocalCluster) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["서울 " * 20]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "weather"}}
    messages = user("How is it? " * 20)
    answer = chat(cluster, messages, tools=[tool], tool_choice=choice)
    message, usage = answer["choices"][0]["message"], answer["usage"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "서울 " * 20}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    again = chat(cluster, [*messages, message, result], tools=[tool], max_tokens=2)
    before = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == before // 64 * 64


def test_an_answer_tells_where_its_prompt_came_from_and_where_its_first_token_waited(
    cluster: LocalCluster,
) -> None:
    messages = user("Where from? " * 30)
    for warm in (False, True):
        answer = chat(cluster, messages, max_tokens=4, ignore_eos=True)
        explained, usage = answer["dualpath"], answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert bool(cached) == warm
        sources = explained["prompt_tokens"]
        assert sources["prefill"] + sources["decode"] == cached
        assert sum(sources.values()) == usage["prompt_tokens"]
        parts = explained["ttft_s"]
        assert sum(parts.values()) == pytest.approx(explained["timings_s"]["ttft"], abs=1e-4)
        assert parts["prefill"] > 0
        assert (parts["reading"] > 0) or not warm
    metrics = httpx.get(f"{cluster.base_url.removesuffix('/v1')}/metrics").text
    assert 'dualpath_ttft_part_seconds_count{part="reading"}' in metrics
    assert 'dualpath_prompt_tokens_total{source="computed"}' in metrics


def test_one_trace_goes_from_the_gateway_through_all_nodes_to_storage(
    cluster: LocalCluster, spans: Collector
) -> None:
    messages, trace = user("Trace me. " * 40), "0af7651916cd43dd8448eb211c80319c"
    chat(cluster, messages, max_tokens=4, ignore_eos=True)
    parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    chat(cluster, messages, parent, max_tokens=4, ignore_eos=True)
    path = [
        ("gateway.request", "gateway-0", None),
        ("scheduler.attempt", "scheduler", "gateway.request"),
        ("prefill.attempt", "prefill-0", "scheduler.attempt"),
        ("prefill.compute", "prefill-0", "prefill.attempt"),
        ("decode.attempt", "decode-0", "scheduler.attempt"),
        ("decode.reserve", "decode-0", "decode.attempt"),
        ("decode.generate", "decode-0", "decode.attempt"),
    ]

    names = {name for name, _, _ in path} | {"storage.read"}
    until(
        lambda: names <= {span.name for span in spans.trace(trace)},
        "every process has sent its spans",
    )
    came = spans.trace(trace)
    seen = {span.name: span for span in came}
    for name, service, parent_name in path:
        assert seen[name].service == service
        expected = seen[parent_name].span if parent_name else "b7ad6b7169203331"
        assert seen[name].parent == expected
    by_id = {span.span: span for span in came}
    reads = [span for span in came if span.name == "storage.read"]
    assert {by_id[read.parent].name for read in reads} <= {"prefill.read", "decode.read"}
    assert all(read.service.startswith("storage-") for read in reads)
