from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.cli.api_client import ApiClient, ApiProblem, NothingListens, events, is_local

BASE = "http://127.0.0.1:1/v1"
Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> ApiClient:
    return ApiClient(BASE, transport=httpx.MockTransport(handler))


def stream(*bodies: dict[str, Any], done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(body, ensure_ascii=False)}\n\n" for body in bodies]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    content = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish}]}


LAST = {
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 64},
    },
    "dualpath": {"read_path": "decode", "bytes_read": {"prefill": 0, "decode": 4096}},
}


def test_an_answer_tells_its_text_and_how_it_was_served() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=stream(delta("one "), delta("two", "stop"), LAST))

    pieces: list[str] = []
    messages = [{"role": "user", "content": "count"}]
    with client(handler) as api:
        answer = api.chat("m", messages, pieces.append, temperature=None, max_tokens=3)
    assert pieces == ["one ", "two"]
    assert answer.text == "one two"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (100, 64, 3)
    assert (answer.read_path, answer.bytes_read) == ("decode", (0, 4096))
    assert seen[0].headers["X-DualPath-Explain"] == "1"
    body = json.loads(seen[0].content)
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 3
    assert "temperature" not in body


def test_a_server_that_is_no_dualpath_is_served_too() -> None:
    with client(lambda _: httpx.Response(200, content=stream(delta("x", "stop")))) as api:
        answer = api.chat("m", [], lambda _: None)
    assert (answer.text, answer.read_path, answer.tokens_per_s) == ("x", "", None)


@given(st.text(max_size=40), st.integers(1, 7))
def test_events_are_whole_however_the_bytes_are_cut(text: str, size: int) -> None:
    data = stream(delta(text), LAST)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(events(chunks)) == [delta(text), LAST]


@pytest.mark.parametrize("line", ["data: {\n", "data: 7\n"])
def test_what_is_no_event_is_a_problem(line: str) -> None:
    with pytest.raises(ApiProblem, match="no event"):
        list(events([line.encode()]))


def test_the_servers_own_sentence_is_passed_on() -> None:
    refusal = {"error": {"message": "the prompt has 9000 tokens, at most 8192 fit"}}
    late = stream(delta("a"), refusal)
    answers = iter((httpx.Response(400, json=refusal), httpx.Response(200, content=late)))
    with client(lambda _: next(answers)) as api:
        for _ in range(2):
            with pytest.raises(ApiProblem, match="at most 8192 fit"):
                api.chat("m", [], lambda _: None)


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    cut = stream(delta("half"), done=False)
    api = client(lambda _: httpx.Response(200, content=cut))
    with api, pytest.raises(ApiProblem, match="in the middle"):
        api.chat("m", [], lambda _: None)


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, json={"data": []}),
        httpx.Response(200, json=[]),
    ],
)
def test_another_kind_of_server_is_told_from_an_api(response: httpx.Response) -> None:
    with client(lambda _: response) as api, pytest.raises(ApiProblem, match="ends in /v1"):
        api.served()


def test_the_status_is_told_where_the_server_says_nothing_else() -> None:
    with client(lambda _: httpx.Response(502)) as api, pytest.raises(ApiProblem, match="502"):
        api.served()


def test_the_model_and_its_context_are_those_that_are_listed() -> None:
    listed = {"data": [{"id": "tiny", "max_model_len": 4096}, {"id": "other"}]}
    with client(lambda _: httpx.Response(200, json=listed)) as api:
        served = api.served()
    assert (served.model, served.max_context) == ("tiny", 4096)


def test_nothing_that_listens_is_said_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    with ApiClient(url) as api, pytest.raises(NothingListens, match="start a cluster with"):
        api.served()


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1/v1", "http://[::1/v1"])
def test_what_is_no_address_is_said(url: str) -> None:
    with ApiClient(url) as api, pytest.raises(ApiProblem, match="is no address"):
        api.served()


def test_proxies_are_not_asked_for_this_machine() -> None:
    assert is_local("http://127.0.0.1:8000/v1")
    assert is_local("http://localhost:8000/v1")
    assert is_local("http://[::1]:8000/v1")
    assert not is_local("https://api.example.org/v1")


def test_a_key_is_sent_where_there_is_one() -> None:
    sent: list[str | None] = []

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    for key in ("k", None):
        with ApiClient(
            "http://127.0.0.1:1/v1", api_key=key, transport=httpx.MockTransport(serve)
        ) as client:
            client.served()
    assert sent == ["Bearer k", None]
