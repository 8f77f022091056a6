"""Who may use the API, how much of it, and what it says of itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import httpx
import openai
import pytest
from structlog.testing import capture_logs
from tests.integration.gateway.cluster import FakeCluster, answering, silence
from tests.integration.gateway.conftest import MAX_CONTEXT, Harness
from tests.support.wait import until

from dualpath.gateway.breakdown import TTFT_PARTS
from dualpath.model.bytelevel import START_ID
from dualpath.settings import KeyLimits
from dualpath.wire import control

BODY = {"model": "synthetic", "prompt": "p" * 200}
HASHES = tuple(
    f"{name}={hashlib.sha256(key.encode()).hexdigest()}"
    for name, key in (("ann", "key-a"), ("bob", "key-b"))
)
KEYED = pytest.mark.parametrize("gateway_settings", [{"api_keys": HASHES}], indirect=True)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def complete(harness: Harness, key: str | None = None, **more: Any) -> httpx.Response:
    headers = bearer(key) if key else {}
    return await harness.http.post("/v1/completions", json=BODY | more, headers=headers)


@KEYED
async def test_only_known_keys_are_served(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    for headers in ({}, bearer("key-c"), bearer("key-a key-b"), {"Authorization": "Basic key-a"}):
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/synthetic"),
        ):
            response = await harness.http.request(method, path, headers=headers, json=BODY)
            assert response.status_code == 401, (path, response.text)
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    assert harness.cluster.submits == []
    assert (await complete(harness, "key-a")).status_code == 200
    assert (await harness.http.get("/v1/models", headers=bearer("key-b"))).status_code == 200
    assert (await harness.http.get("/health")).status_code == 200
    with pytest.raises(openai.AuthenticationError, match="not known"):
        await harness.openai.models.list()


@KEYED
async def test_keys_separate_tenants_whatever_salt_they_wish(harness: Harness) -> None:
    harness.cluster.script = answering("x")
    (bob,) = (entry.partition("=")[2] for entry in HASHES if entry.startswith("bob"))
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("key-a", {}),
        ("key-b", {}),
        ("key-a", {"cache_salt": "s"}),
        ("key-b", {"cache_salt": "s"}),
        ("key-a", {"cache_salt": f"{bob}:"}),
    ]
    for key, more in wishes:
        assert (await complete(harness, key, **more)).status_code == 200
    assert len({submit.root for submit in harness.cluster.submits}) == len(wishes)


@pytest.mark.parametrize("gateway_settings", [{"max_requests": 2}], indirect=True)
async def test_beyond_its_bound_a_gateway_says_429_at_once(harness: Harness) -> None:
    harness.cluster.script = silence
    held = [asyncio.create_task(complete(harness)) for _ in range(2)]
    await until(lambda: len(harness.cluster.submits) == 2)
    response = await complete(harness)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "capacity")
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.headers["retry-after"]
    for task in held:
        task.cancel()
    await harness.idle()
    harness.cluster.script = answering("x")
    bad = await complete(harness, max_tokens=0)
    assert bad.status_code == 400
    for _ in range(3):
        assert (await complete(harness)).status_code == 200
    places = [pool.used for pool in harness.gateway.status().pools if "places" in pool.name]
    assert places == [0]


@pytest.mark.parametrize(
    "gateway_settings", [{"api_keys": HASHES, "max_requests_per_key": 1}], indirect=True
)
async def test_one_key_cannot_take_all_places(harness: Harness) -> None:
    harness.cluster.script = silence
    held = asyncio.create_task(complete(harness, "key-a"))
    await until(lambda: harness.cluster.submits)
    assert (await complete(harness, "key-a")).status_code == 429
    harness.cluster.script = answering("x")
    assert (await complete(harness, "key-b")).status_code == 200
    held.cancel()
    await harness.idle()


LIMITED = {"ann": KeyLimits(tokens_per_minute=300, weight=3), "bob": KeyLimits(requests=1)}


@pytest.mark.parametrize(
    "gateway_settings", [{"api_keys": HASHES, "key_limits": LIMITED}], indirect=True
)
async def test_a_key_without_tokens_is_told_when_to_come_back(harness: Harness) -> None:
    harness.cluster.script = answering("x" * 40)
    for path in ("/v1/completions", "/v1/responses"):
        prompt = {"prompt": "p" * 200} if path.endswith("completions") else {"input": "p" * 400}
        body = {"model": "synthetic", **prompt}
        response = await harness.http.post(path, json=body, headers=bearer("key-a"))
        if path.endswith("completions"):
            assert response.status_code == 200
            continue
        # 300 − 200 − 40 are left, and whatever came since: less than a whole minute's.
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(response.headers["retry-after"]) <= 48
    assert (await complete(harness, "key-b")).status_code == 200
    assert [(s.tenant, s.weight) for s in harness.cluster.submits] == [("ann", 3.0), ("bob", 1.0)]
    places = [p.name for p in harness.gateway.status().pools].index("gateway_places")
    await until(lambda: harness.gateway.status().pools[places].used == 0)


@pytest.mark.parametrize(
    "gateway_settings", [{"api_keys": HASHES, "key_limits": LIMITED}], indirect=True
)
async def test_a_prompt_that_is_computed_for_each_choice_is_charged_for_each(
    harness: Harness,
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.score(submit, 1, [-1.0] * 59, [])
        await cluster.say(submit, 0, [ord("x")], "length")

    harness.cluster.script = script
    body = {"model": "synthetic", "prompt": "p" * 60, "echo": True, "logprobs": 0, "n": 3}
    answers = [
        await harness.http.post("/v1/completions", json=body, headers=bearer("key-a"))
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 429]


async def test_text_and_ids_are_told_both_ways(harness: Harness) -> None:
    text = "한 👩 <|im_start|>"
    answer = (await harness.http.post("/tokenize", json={"prompt": text})).json()
    assert answer["tokens"] == [*"한 👩 ".encode(), START_ID]
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), MAX_CONTEXT)
    back = await harness.http.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": text}
    messages = [{"role": "user", "content": "Hi"}]
    chat = (await harness.http.post("/tokenize", json={"messages": messages})).json()
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (await harness.http.post("/detokenize", json={"tokens": chat["tokens"]})).json() == {
        "prompt": rendered
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, None),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, 400, None),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "colour": 1}, 400, "colour"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [400]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
    ],
)
async def test_wrong_bodies_of_the_tokenizer_are_refused(
    harness: Harness, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    response = await harness.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


async def test_a_gateway_that_is_not_ready_is_alive(harness: Harness) -> None:
    await harness.cluster.registered.wait()
    await until(lambda: harness.gateway.healthy()[0])
    assert (await harness.http.get("/ready")).status_code == 200
    harness.cluster.registration_refusal = "another model"
    await until(lambda: not harness.gateway.healthy()[0])
    ready = await harness.http.get("/ready")
    assert (ready.status_code, "another model" in ready.json()["detail"]) == (503, True)
    assert (await harness.http.get("/health")).status_code == 200


async def test_the_api_describes_itself(harness: Harness) -> None:
    document = (await harness.http.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    name = body["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert "messages" in document["components"]["schemas"][name]["required"]
    page = (await harness.http.get("/docs")).text
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page
    for known in document["components"]["schemas"]:
        assert f'id="{known}"' in page
    # Nothing of it is elsewhere: it works where there is no other host.
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//|<script|@import|url\(""", page) == []

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= schemas


# ── deadlines ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"timeout": 0.05}, {}),
        ({}, {"X-Request-Timeout": "0.05"}),
        ({"timeout": 0.05}, {"X-Request-Timeout": "50"}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
async def test_a_request_ends_at_its_own_deadline(
    harness: Harness, body: dict[str, Any], headers: dict[str, str], path: str
) -> None:
    prompt = {"input": "x"} if path.endswith("responses") else {"prompt": "x"}
    response = await harness.http.post(
        path, json={"model": "synthetic", **prompt, **body}, headers=headers
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (408, "timeout", "timeout")
    assert "0.05 s" in error["message"]
    await harness.idle()
    # A machine may be too slow to submit it in that time; what was submitted knows how long it has, and is cancelled.
    submits, cancelled = harness.cluster.submits, harness.cluster.cancelled
    await until(lambda: {s.attempt for s in submits} <= {c.attempt for c in cancelled})
    assert all(0 < submit.deadline_s <= 0.05 for submit in submits)


async def test_after_the_first_token_a_deadline_is_an_error_event_and_the_end(
    harness: Harness,
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"a"])

    harness.cluster.script = script
    body = BODY | {"stream": True, "timeout": 0.5}
    async with harness.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line async for line in response.aiter_lines() if line]
    # However slow the machine, either the token or the deadline came first.
    if response.status_code == 200:
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "timeout"
        assert '"finish_reason":null' in lines[0]
    else:
        assert response.status_code == 408
    await harness.idle()


@pytest.mark.parametrize("gateway_settings", [{"request_deadline_s": 0.05}], indirect=True)
async def test_nobody_gets_more_time_than_the_settings_give(harness: Harness) -> None:
    response = await complete(harness, timeout=500)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline")


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e999", "5 s"])
async def test_a_deadline_that_is_no_time_is_refused(harness: Harness, text: str) -> None:
    response = await harness.http.post(
        "/v1/completions", json=BODY, headers={"X-Request-Timeout": text}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Timeout"


# ── one wide line ──────────────────────────────────────────────────────────────────────────────────
@KEYED
async def test_each_request_has_one_wide_line_without_its_text(harness: Harness) -> None:
    harness.cluster.script = answering("secret words")
    with capture_logs() as lines:
        assert (await complete(harness, "key-a")).status_code == 200
        assert (await complete(harness, "key-a", timeout=-1)).status_code == 400
        harness.cluster.script = silence
        assert (await complete(harness, "key-b", timeout=0.05)).status_code == 408
        await harness.idle()
    told = [line for line in lines if line["event"] in ("request ended", "request refused")]
    assert [(line.get("key"), line["status"], line["code"]) for line in told] == [
        ("ann", 200, None),
        (None, 400, "invalid_value"),
        ("bob", 408, "timeout"),
    ]
    assert told[0]["prompt_tokens"] == 200
    assert told[0]["outcome"] == "done"
    assert set(TTFT_PARTS) <= {name.removesuffix("_s") for name in told[0]}
    assert "secret words" not in str(lines)
    assert "pppp" not in str(lines)
