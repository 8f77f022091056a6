"""Clients that mean harm, or are broken: what they send costs them, and not the others."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest
import pytest_asyncio
from tests.integration.gateway.cluster import FakeCluster, answering
from tests.integration.gateway.conftest import Harness
from tests.support.wait import until

from dualpath.gateway import connection
from dualpath.wire import control
from dualpath.wire.types import Sampled

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest_asyncio.fixture
async def raw(harness: Harness) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    url = httpx.URL(harness.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    yield reader, writer
    writer.close()


Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send_until_closed(raw: Raw, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """How many bytes were taken, and what came back, whether or not the reset overtook it."""
    reader, writer = raw
    writer.write(start)
    sent = len(start)
    try:
        while sent < 64 << 20 and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        return sent, await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return sent, b""


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /v1/models?", b"a" * 65536),
        (b"GET /v1/models HTTP/1.1\r\nX: ", b"a" * 65536),
        (b"GET /v1/models HTTP/1.1\r\n", b"X: a\r\n" * 10_000),
        (b"", b"\r\n" * 32_768),
    ],
)
async def test_a_head_without_end_is_cut(
    harness: Harness, raw: Raw, start: bytes, piece: bytes
) -> None:
    sent, answer = await asyncio.wait_for(send_until_closed(raw, start, piece), 60)
    assert sent < 64 << 20
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert (await harness.http.get("/v1/models")).status_code == 200


async def test_a_long_head_is_told_so(harness: Harness) -> None:
    taken = await harness.http.get("/v1/models", headers={"X": "a" * 60_000})
    assert taken.status_code == 200
    refused = await harness.http.get(
        "/v1/models", headers={f"X{number}": "a" * 1000 for number in range(400)}
    )
    assert refused.status_code == 431
    assert "longer than 65536 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize("begun", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
async def test_a_head_that_does_not_come_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, harness: Harness, begun: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    url = httpx.URL(harness.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(begun)
        answer = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ") if begun else answer == b""


async def test_the_time_for_a_head_does_not_end_an_answer_or_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch, harness: Harness, raw: Raw
) -> None:
    # Over a connection that is there already: to begin with, this time holds for each.
    assert (await harness.http.get("/v1/models")).status_code == 200
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    reader, writer = raw
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    body = json.dumps({"model": "synthetic", "prompt": "a", "max_tokens": 1}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    # The answer waits for the fake cluster, and the head of the next request has begun.
    writer.write(post + body + ask[:10])
    await until(lambda: harness.cluster.submits, what="the request is submitted")
    looked = time.monotonic()
    while time.monotonic() < looked + 4 * connection.HEAD_S:
        assert (await harness.http.get("/v1/models")).status_code == 200
    assert not reader.at_eof()


@pytest.mark.parametrize("stream", [True, False])
async def test_clients_that_never_read_hold_little_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, harness: Harness, stream: bool
) -> None:
    """Streams, and answers at once, whose requests are over long before."""
    monkeypatch.setattr(connection, "UNREAD_S", 0.5)
    tokens = [Sampled(97, -0.5, tuple((97, -0.5) for _ in range(20)))] * 250
    most = 0

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        nonlocal most
        for held in connections():
            held.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
            )
        for index in range(0, 1000, len(tokens)):
            await cluster.say(submit, index, tokens)
            await until(partial(acknowledged, submit, index + len(tokens)), what="ack")
            most = max([most, *(c.transport.get_write_buffer_size() for c in connections())])
        await cluster.say(submit, 1000, [], "length")

    def acknowledged(submit: control.Submit, count: int) -> bool:
        return any(
            ack.next_index >= count for ack in harness.cluster.acks if ack.attempt == submit.attempt
        )

    def connections() -> list[connection.Connection]:
        server = harness.gateway._server
        assert server is not None
        return [c for c in server.server_state.connections if isinstance(c, connection.Connection)]

    harness.cluster.script = script
    url = httpx.URL(harness.url)
    clients = []
    for _ in range(3):
        ask = {
            "model": "synthetic",
            "messages": [{"role": "user", "content": "a"}],
            "logprobs": True,
        }
        body = json.dumps(ask | {"top_logprobs": 20, "stream": stream}).encode()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (url.host, url.port))
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
            CHAT.encode(),
            len(body),
        )
        await asyncio.get_running_loop().sock_sendall(client, head + body)
        clients.append(client)
    await until(lambda: len(harness.cluster.submits) == 3, what="all are served")
    await until(lambda: not connections(), what="all are cut off")
    await until(lambda: not any(p.used for p in harness.gateway.status().pools), what="all is free")
    # Of a stream, 64 KiB and the event that went over it: 250 tokens have some 400 KB.
    assert most < 1 << 20 or not stream
    for client in clients:
        client.close()


MANY = 250_000

ENDLESS = {
    "null messages": b'{"model":"synthetic","messages":[%s]}' % b",".join([b"null"] * MANY),
    "bad messages": b'{"model":"synthetic","messages":[%s]}'
    % b",".join([b'{"role":"u","content":1}'] * MANY),
    "fields": b'{"model":"synthetic",%s}' % b",".join(b'"k%d":1' % n for n in range(MANY)),
    "a message's fields": b'{"model":"synthetic","messages":[{%s}]}'
    % b",".join(b'"k%d":1' % n for n in range(MANY)),
    "stop ids": b'{"model":"synthetic","messages":[],"stop_token_ids":[%s]}'
    % b",".join([b'"x"'] * MANY),
}


@pytest.mark.parametrize("gateway_settings", [{"max_body": 8 << 20}], indirect=True)
async def test_a_body_full_of_mistakes_is_refused_for_one(harness: Harness) -> None:
    for name, body in ENDLESS.items():
        response = await harness.http.post(CHAT, content=body)
        assert response.status_code == 400, name
        assert len(response.content) < 1000, name
    assert harness.cluster.submits == []


@pytest.mark.parametrize("gateway_settings", [{"max_body": 8 << 20}], indirect=True)
async def test_others_are_served_while_a_body_of_megabytes_is_checked(harness: Harness) -> None:
    harness.cluster.script = answering("ok")
    message = b'{"role":"user","content":"a"}'
    body = b'{"model":"synthetic","messages":[%s]}' % b",".join([message] * 100_000)
    big = asyncio.create_task(harness.http.post(CHAT, content=body))
    served = 0
    while not big.done():
        small = {"model": "synthetic", "prompt": "a", "max_tokens": 2}
        assert (await harness.http.post(COMPLETIONS, json=small)).status_code == 200
        served += 1
    refused = await big
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert served > 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "min_tokens", "seed"])
async def test_integers_of_thousands_of_digits_are_refused(harness: Harness, name: str) -> None:
    messages = b'[{"role":"user","content":"a"}]'
    body = b'{"model":"synthetic","messages":%s,"%s":%s}' % (messages, name.encode(), b"9" * 4300)
    response = await harness.http.post(CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
