"""A request outlives its attempts, and nothing outlives its client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.integration.gateway.cluster import NODE, FakeCluster, answering
from tests.integration.gateway.conftest import Harness
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.blocks import BlockKeys, pack_keys, root_key
from dualpath.wire import control
from dualpath.wire.types import Attempt, Sampled

TEXT = "The stream goes on as if nothing had been. " * 5
BODY = {"model": "synthetic", "prompt": "p" * 100, "max_tokens": len(TEXT)}


async def complete(harness: Harness, **more: object) -> httpx.Response:
    return await harness.http.post("/v1/completions", json={**BODY, **more})


def events_of(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


# ── attempts ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("stream", [False, True])
async def test_a_lost_attempt_goes_on_where_it_ended(harness: Harness, stream: bool) -> None:
    prompts = []

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        prompts.append(await cluster.prompt(submit))
        done = submit.generated
        if submit.attempt.number < 3:
            await cluster.say(submit, done, [*TEXT.encode()[done : done + 40]])
            await cluster.lose(submit)
            await cluster.say(submit, done + 40, [*b"too late"])
            return
        await answering(TEXT)(cluster, submit)

    harness.cluster.script = script
    response = await complete(harness, stream=stream)
    if stream:
        events = events_of(response.text)
        choices = [choice for event in events for choice in event["choices"]]
        assert "".join(choice["text"] for choice in choices) == TEXT
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["choices"][0]["text"] == TEXT
    ids = [*b"p" * 100, *TEXT.encode()]
    assert prompts == [ids[:100], ids[:140], ids[:180]]
    submits = harness.cluster.submits
    assert [(s.attempt.number, s.generated, s.prompt_tokens) for s in submits] == [
        (1, 0, 100),
        (2, 40, 140),
        (3, 80, 180),
    ]
    for submit, prompt in zip(submits, prompts, strict=True):
        keys = BlockKeys(root_key(harness.spec.fingerprint), harness.settings.block_tokens)
        keys.extend(prompt)
        assert submit.keys == pack_keys(keys.keys)
        assert submit.sampling == submits[0].sampling
    late = [ack for ack in harness.cluster.acks if ack.attempt.number < 3 and ack.finished]
    assert late


async def test_an_attempt_lost_before_its_finish_needs_no_other_if_all_tokens_are_there(
    harness: Harness,
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"abc"])
        await cluster.lose(submit)

    harness.cluster.script = script
    response = await complete(harness, max_tokens=3)
    assert response.json()["choices"][0]["text"] == "abc"
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert len(harness.cluster.submits) == 1


async def test_after_too_many_losses_the_client_gets_an_error(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.lose(submit)

    harness.cluster.script = script
    response = await complete(harness, stream=True)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "transfer"
    assert len(harness.cluster.submits) == harness.settings.max_attempts


@pytest.mark.parametrize(
    ("code", "status"), [("too_large", 413), ("deadline", 504), ("unavailable", 503)]
)
async def test_a_loss_for_good_is_told_with_its_status(
    harness: Harness, code: str, status: int
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.lose(submit, code=code, retry=False)

    harness.cluster.script = script
    response = await complete(harness)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code


async def test_preemptions_do_not_count_as_losses(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if submit.attempt.number < 8:
            await cluster.lose(submit, code="preempted")
        else:
            await answering("ok")(cluster, submit)

    harness.cluster.script = script
    assert (await complete(harness)).json()["choices"][0]["text"] == "ok"


async def test_a_loss_that_cannot_be_retried_ends_a_stream_with_an_error_event(
    harness: Harness,
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"ab"])
        await until(lambda: cluster.acks)
        await cluster.lose(submit, code="deadline", retry=False)

    harness.cluster.script = script
    response = await complete(harness, stream=True)
    first, last = events_of(response.text)
    assert first["choices"][0]["finish_reason"] is None
    assert last["error"]["code"] == "deadline"
    assert "[DONE]" not in response.text


async def test_a_restarted_scheduler_is_told_of_what_runs(harness: Harness) -> None:
    first = asyncio.Event()

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if submit.attempt.number == 1:
            await cluster.say(submit, 0, [*b"ab"])
            first.set()
        else:
            await answering("abcd")(cluster, submit)

    harness.cluster.script = script
    await harness.cluster.registered.wait()
    request = asyncio.create_task(complete(harness))
    await first.wait()
    await until(lambda: harness.cluster.acks)
    harness.cluster.incarnation = "second"
    assert (await request).json()["choices"][0]["text"] == "abcd"
    assert [submit.generated for submit in harness.cluster.submits] == [0, 2]


async def test_a_refused_later_attempt_waits_for_nodes_to_come_back(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if submit.attempt.number == 1:
            cluster.refusal = control.Refused("no decode node is alive", code="unavailable")
            await cluster.lose(submit)
            await until(lambda: cluster.refused >= 2)
            cluster.refusal = None
        else:
            await answering("back")(cluster, submit)

    harness.cluster.script = script
    assert (await complete(harness)).json()["choices"][0]["text"] == "back"


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────────
async def test_tokens_are_taken_once_and_acknowledged_without_gaps(harness: Harness) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"ab"])
        await cluster.say(submit, 0, [*b"ab"])
        await cluster.say(submit, 3, [*b"d"], "length")
        await cluster.say(submit, 1, [*b"bcd"])
        await cluster.say(submit, 3, [*b"d"], "length")

    harness.cluster.script = script
    assert (await complete(harness)).json()["choices"][0]["text"] == "abcd"
    await until(lambda: len(harness.cluster.acks) == 5)
    acks = [(ack.next_index, ack.finished) for ack in harness.cluster.acks]
    assert acks == [(2, False), (2, False), (2, False), (4, False), (4, True)]
    (submit,) = harness.cluster.submits
    await harness.cluster.say(submit, 2, [*b"cd"], "length")
    await until(lambda: len(harness.cluster.acks) == 6)
    assert (harness.cluster.acks[5].next_index, harness.cluster.acks[5].finished) == (4, True)


async def test_tokens_of_a_request_that_is_gone_are_acknowledged_as_finished(
    harness: Harness,
) -> None:
    stray = Attempt("nobody", 1)
    event = control.TokenEvent(stray, 5, (Sampled(1),))
    await harness.cluster.bus.publish(
        control.gateway_subject("gateway-0"), control.TokenEvents(NODE, (event,))
    )
    await until(lambda: harness.cluster.acks)
    assert harness.cluster.acks[0] == control.TokenAck(stray, 6, finished=True)
    subject = control.gateway_subject("gateway-0")
    answer = await harness.cluster.bus.request(subject, control.TokenRequest(stray, 0, 1))
    assert isinstance(answer, control.Refused)
    answer = await harness.cluster.bus.request(
        subject, control.AttemptOver(stray, "internal", "x", True)
    )
    assert answer == control.Ok()


# ── clients that go away ───────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spoken", [False, True])
async def test_a_client_that_goes_away_is_forgotten_and_cancelled(
    harness: Harness, stream: bool, spoken: bool
) -> None:
    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        if spoken:
            await cluster.say(submit, 0, [*b"ab"])

    harness.cluster.script = script
    request = asyncio.create_task(complete(harness, stream=stream))
    await until(lambda: harness.cluster.acks if spoken else harness.cluster.submits)
    assert harness.in_flight() == 1
    request.cancel()
    await harness.idle()
    await until(lambda: harness.cluster.cancelled)
    assert harness.cluster.cancelled[0].attempt == harness.cluster.submits[0].attempt


async def test_hundreds_of_clients_that_go_away_leave_nothing(harness: Harness) -> None:
    requests = [asyncio.create_task(complete(harness, stream=i % 2 == 0)) for i in range(90)]
    await until(lambda: len(harness.cluster.submits) == 90)
    for request in requests:
        request.cancel()
    await harness.idle()
    await until(lambda: len(harness.cluster.cancelled) == 90)
    harness.cluster.script = answering("as ever")
    assert (await complete(harness)).json()["choices"][0]["text"] == "as ever"
    await until(lambda: harness.gateway.status().pools[1].used == 0)


async def test_a_client_that_leaves_while_it_is_submitted_is_cancelled(harness: Harness) -> None:
    harness.cluster.silent = True
    request = asyncio.create_task(complete(harness))
    await until(harness.in_flight)
    request.cancel()
    await harness.idle()
    harness.cluster.silent = False
    await until(lambda: harness.cluster.cancelled)


async def test_a_client_that_closes_in_the_middle_of_its_body_leaves_nothing(
    harness: Harness,
) -> None:
    host, port = harness.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"mod')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await harness.http.get("/v1/models")).status_code == 200
    assert harness.cluster.submits == []


# ── a scheduler that says no, or nothing ───────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("capacity", 429, "capacity"),
        ("unavailable", 503, "unavailable"),
        ("too_long", 400, "context_length_exceeded"),
        ("internal", 500, "internal"),
    ],
)
async def test_a_refusal_is_told_with_its_status(
    harness: Harness, code: str, status: int, told: str
) -> None:
    harness.cluster.refusal = control.Refused("the queue is full", code=code)
    response = await complete(harness, stream=True)
    assert response.status_code == status
    assert "the queue is full" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == told
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert harness.cluster.cancelled == []


async def test_a_prompt_that_does_not_fit_the_bus_is_413_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.cluster.script = answering("ok")
    monkeypatch.setattr("dualpath.bus.nats_bus.MAX_MESSAGE_BYTES", 600)
    response = await complete(harness, prompt="p" * 2000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "too_large"
    assert "limit of 600 bytes" in response.json()["error"]["message"]
    assert (await complete(harness)).json()["choices"][0]["text"] == "ok"
    assert harness.cluster.cancelled == []


async def test_a_scheduler_that_does_not_know_the_gateway_is_told_of_it(harness: Harness) -> None:
    await harness.cluster.registered.wait()
    harness.cluster.registered.clear()
    harness.cluster.refusal = control.Refused("gateway-0 is not registered", code="unknown")
    harness.cluster.script = answering("ok")
    request = asyncio.create_task(complete(harness))
    await harness.cluster.registered.wait()
    harness.cluster.refusal = None
    assert (await request).json()["choices"][0]["text"] == "ok"


async def test_a_silent_scheduler_is_503_and_unhealthy(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualpath.gateway.flights.SUBMIT_S", 0.3)
    monkeypatch.setattr("dualpath.gateway.registration.SILENT_S", 0.1)
    await harness.cluster.registered.wait()
    harness.cluster.silent = True
    response = await complete(harness)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    health = await harness.http.get("/ready")
    assert health.status_code == 503
    assert "scheduler" in health.json()["detail"]
    harness.cluster.silent = False
    # Whether the submission arrived is unknown: it is taken back.
    await until(lambda: harness.cluster.cancelled)


async def test_a_gateway_that_is_not_taken_says_why(harness: Harness) -> None:
    harness.cluster.registration_refusal = "this gateway serves another model"
    await until(lambda: "another model" in harness.gateway.healthy()[1])
    response = await complete(harness)
    assert response.status_code == 503
    assert "another model" in response.json()["error"]["message"]


@pytest.mark.parametrize("gateway_settings", [{"request_deadline_s": 0.2}], indirect=True)
async def test_the_deadline_ends_a_request(harness: Harness) -> None:
    response = await complete(harness)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline"
    assert harness.cluster.submits[0].deadline_s <= 0.2
    await until(lambda: harness.cluster.cancelled)


async def test_the_bus_may_go_away_and_come_back(harness: Harness, nats_server: NatsServer) -> None:
    spoken = asyncio.Event()

    async def script(cluster: FakeCluster, submit: control.Submit) -> None:
        await cluster.say(submit, 0, [*b"ab"])
        spoken.set()

    harness.cluster.script = script
    request = asyncio.create_task(complete(harness))
    await spoken.wait()
    await until(lambda: harness.cluster.acks)
    await nats_server.stop()
    await until(lambda: not harness.cluster.bus.connected)
    await nats_server.start()
    await until(lambda: harness.cluster.bus.connected)
    (submit,) = harness.cluster.submits

    async def resend() -> None:
        while not any(ack.finished for ack in harness.cluster.acks):
            await harness.cluster.say(submit, 2, [*b"cd"], "length")
            await asyncio.sleep(0.05)

    await asyncio.wait_for(resend(), 60)
    assert (await request).json()["choices"][0]["text"] == "abcd"
    assert len(harness.cluster.submits) == 1


# ── stopping ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("gateway_settings", [{"stop_s": 15.0}], indirect=True)
async def test_stopping_lets_the_quick_finish_and_ends_the_rest_with_an_error(
    harness: Harness,
) -> None:
    held = asyncio.create_task(complete(harness))
    await until(lambda: harness.cluster.submits)
    quick = asyncio.create_task(complete(harness))
    await until(lambda: len(harness.cluster.submits) == 2)
    closing = asyncio.create_task(harness.gateway.close())
    await answering("done")(harness.cluster, harness.cluster.submits[1])
    assert (await quick).json()["choices"][0]["text"] == "done"
    response = await held
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "stopping"
    await closing
    assert harness.in_flight() == 0
    assert len(harness.cluster.cancelled) == 1
    with pytest.raises(httpx.ConnectError):
        await harness.http.get("/health")


async def test_stopping_ends_a_request_that_waits_for_the_scheduler(harness: Harness) -> None:
    harness.cluster.silent = True
    request = asyncio.create_task(complete(harness))
    await until(harness.in_flight)
    await harness.gateway.close()
    assert harness.in_flight() == 0
    assert (await request).json()["error"]["code"] == "stopping"


async def test_a_body_that_ends_while_the_gateway_stops_gets_the_same_error(
    harness: Harness,
) -> None:
    harness.gateway._flights.stop()
    response = await complete(harness)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "stopping")
    assert harness.cluster.submits == []
    assert harness.in_flight() == 0


async def test_metrics_count_requests_by_outcome(harness: Harness) -> None:
    harness.cluster.script = answering("abc")
    await complete(harness)
    text = (await harness.http.get("/metrics")).text
    assert 'dualpath_requests_total{outcome="done"} 1.0' in text
    assert "dualpath_ttft_seconds_count 1.0" in text
    assert 'dualpath_pool_used{pool="gateway_requests"} 0.0' in text
    pools = (await harness.http.get("/status")).json()["pools"]
    assert [(pool["name"], pool["used"]) for pool in pools] == [
        ("gateway_requests", 0),
        ("gateway_cancellations", 0),
        ("gateway_places", 0),
    ]
    await harness.http.get("/nowhere")
    assert (
        'dualpath_events_total{event="http_404"} 1.0' in (await harness.http.get("/metrics")).text
    )
