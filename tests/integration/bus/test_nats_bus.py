from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
import uvloop
from nats.aio.msg import Msg
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.bus import Bus, BusTimeout, BusUnavailable, MalformedAnswer, PayloadTooLarge, nats_bus
from dualpath.wire.codec import Decoder, Message
from dualpath.wire.control import Abort, Ok, Refused, TokenPage, TokenRequest
from dualpath.wire.types import Attempt

decoder = Decoder(Abort, TokenRequest)


def abort(number: int = 0) -> Abort:
    return Abort(Attempt("r", number), "test")


@pytest_asyncio.fixture
async def pair(nats_server: NatsServer) -> AsyncIterator[tuple[Bus, Bus]]:
    client, server = await nats_server.connect("client"), await nats_server.connect("server")
    try:
        yield client, server
    finally:
        await client.close()
        await server.close()


async def ok(_: Message) -> Message:
    return Ok()


async def test_a_request_is_answered_by_the_handler(pair: tuple[Bus, Bus]) -> None:
    client, server = pair

    async def handler(message: Message) -> Message:
        assert isinstance(message, TokenRequest)
        return TokenPage(message.start, b"x" * (message.stop - message.start))

    await server.serve("s", decoder, handler)
    assert await client.request(
        "s", TokenRequest(Attempt("r", 1), 5, 8), timeout_s=60
    ) == TokenPage(5, b"xxx")


async def test_who_serves_goes_on_once_a_slow_server_knows_of_it(
    pair: tuple[Bus, Bus], nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    monkeypatch.setattr(nats_bus, "_TRY_S", 0.01)
    nats_server.pause()
    serving = asyncio.create_task(server.serve("s", decoder, ok))
    done, _ = await asyncio.wait({serving}, timeout=0.2)
    nats_server.resume()
    assert not done
    await serving
    assert await client.request("s", abort(), timeout_s=60) == Ok()


async def test_nobody_serving_is_told_at_once_and_apart_from_a_timeout(
    pair: tuple[Bus, Bus],
) -> None:
    client, server = pair
    with pytest.raises(BusUnavailable, match="nobody serves"):
        await client.request("nobody", abort(), timeout_s=60)

    async def never(_: Message) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    await server.serve("slow", decoder, never)
    with pytest.raises(BusTimeout, match="no answer to Abort on slow"):
        await client.request("slow", abort(), timeout_s=0.05)


async def test_malformed_messages_and_failing_handlers_are_answered(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair

    async def fails(_: Message) -> Message:
        raise RuntimeError("no such thing")

    await server.serve("s", decoder, fails)
    answer = await client.request("s", abort(), timeout_s=60)
    assert isinstance(answer, Refused)
    assert answer.code == "internal"
    answer = await client.request("s", Ok(), timeout_s=60)
    assert isinstance(answer, Refused)
    assert answer.code == "malformed"


async def test_a_malformed_answer_is_an_error_of_its_own(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, _ = pair
    raw = await nats.connect(nats_server.url, user=nats_server.user, password=nats_server.password)

    async def garbage(msg: Msg) -> None:
        await msg.respond(b"\xc1garbage")

    await raw.subscribe("raw", cb=garbage)
    # Not `flush`: its ping may overtake the subscription. What the server sends back came after it.
    await raw.request("raw", b"", timeout=60)
    with pytest.raises(MalformedAnswer):
        await client.request("raw", abort(), timeout_s=60)
    await raw.close()


async def test_handlers_of_a_subject_start_in_order_and_run_concurrently(
    pair: tuple[Bus, Bus],
) -> None:
    client, server = pair
    started: list[int] = []
    all_started = asyncio.Event()

    async def handler(message: Message) -> Message:
        assert isinstance(message, Abort)
        started.append(message.attempt.number)
        if len(started) == 100:
            all_started.set()
        await all_started.wait()
        return Ok()

    await server.serve("s", decoder, handler)
    await asyncio.gather(*(client.request("s", abort(i), timeout_s=60) for i in range(100)))
    assert started == list(range(100))


async def test_a_message_over_max_payload_names_the_limit(tmp_path: Path) -> None:
    nats_server = NatsServer(tmp_path / "small", max_payload=4096)
    await nats_server.start()
    bus, other = await nats_server.connect(), await nats_server.connect()

    async def large(_: Message) -> Message:
        return TokenPage(0, bytes(5000))

    try:
        assert bus.max_payload == 4096
        await other.serve("s", decoder, large)
        with pytest.raises(PayloadTooLarge, match="limit of 4096 bytes") as caught:
            await bus.request("s", TokenPage(0, bytes(5000)))
        assert caught.value.limit == 4096
        answer = await bus.request("s", abort(), timeout_s=60)
        assert isinstance(answer, Refused)
        assert "too large" in answer.reason
        assert bus.connected
    finally:
        await bus.close()
        await other.close()
        await nats_server.stop()


async def test_requests_survive_a_restart_of_the_server(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair
    await server.serve("s", decoder, ok)
    await nats_server.stop()
    await until(lambda: not client.connected)
    with pytest.raises(BusUnavailable):
        await client.request("s", abort())
    with pytest.raises(BusUnavailable):
        await client.publish("s", abort())
    late = asyncio.create_task(client.request_until_answered("s", abort(), deadline_s=60))
    # A subject that is first served while the server is away is there when it comes back.
    await server.serve("s2", decoder, ok)
    await nats_server.start()
    assert await late == Ok()
    assert await client.request_until_answered("s2", abort(), deadline_s=60) == Ok()


def test_what_was_not_sent_when_the_connection_broke_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def publish_until_lost(bus: Bus) -> None:
        while bus.connected:
            with contextlib.suppress(BusUnavailable):
                await bus.publish("s", abort())
            await asyncio.sleep(0)

    async def main() -> None:
        server = NatsServer(tmp_path)
        await server.start()
        bus = await server.connect("client")
        try:
            for _ in range(5):
                publishing = [asyncio.create_task(publish_until_lost(bus)) for _ in range(20)]
                await server.stop()
                await asyncio.gather(*publishing)
                await server.start()
                await until(lambda: bus.connected, what="the bus is back")
        finally:
            await bus.close()
            await server.stop()

    # As in services; its transports fail where asyncio's say nothing.
    uvloop.run(main())
    gc.collect()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_whatever_answers_in_the_servers_place_the_bus_comes_back(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair
    await server.serve("s", decoder, ok)
    await nats_server.stop()
    dialled = asyncio.Event()

    async def impostor(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO\r\n")
        await writer.drain()
        writer.close()
        dialled.set()

    port = int(nats_server.url.rpartition(":")[2])
    async with await asyncio.start_server(impostor, "127.0.0.1", port):
        await dialled.wait()
        dialled.clear()
        await asyncio.wait_for(dialled.wait(), 60)
    await nats_server.start()
    assert await client.request_until_answered("s", abort(), deadline_s=60) == Ok()


async def test_a_lost_connection_fails_open_requests_at_once(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair
    reached = asyncio.Event()

    async def never(_: Message) -> Message:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    await server.serve("s", decoder, never)
    waiting = asyncio.create_task(client.request("s", abort(), timeout_s=60))
    await reached.wait()
    await nats_server.stop()
    with pytest.raises(BusUnavailable, match="was lost"):
        await waiting


async def test_repeating_ends_at_the_deadline_with_the_last_reason(pair: tuple[Bus, Bus]) -> None:
    client, _ = pair
    with pytest.raises(BusTimeout, match="nobody serves nobody"):
        await client.request_until_answered("nobody", abort(), deadline_s=0.2)


async def test_a_cancelled_request_leaves_nothing_behind(pair: tuple[Bus, Bus]) -> None:
    client, server = pair
    reached, ended = asyncio.Event(), asyncio.Event()

    async def never(_: Message) -> Message:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    await server.serve("s", decoder, never)
    task = asyncio.create_task(client.request("s", abort(), timeout_s=60))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not client._waiting


async def test_close_lets_running_handlers_answer(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair
    reached, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Message) -> Message:
        reached.set()
        await go.wait()
        return Ok()

    await server.serve("s", decoder, slow)
    request = asyncio.create_task(client.request("s", abort(), timeout_s=60))
    await reached.wait()
    closing = asyncio.create_task(server.close())
    go.set()
    assert await request == Ok()
    await closing
    with pytest.raises(BusUnavailable):
        await server.publish("s", abort())


async def test_a_wrong_password_is_refused_with_a_sentence(nats_server: NatsServer) -> None:
    with pytest.raises(BusUnavailable, match="check nats_user and nats_password"):
        await Bus.connect(nats_server.url, "x", user="test", password="wrong")


async def test_connect_waits_for_a_server_that_is_starting(nats_server: NatsServer) -> None:
    await nats_server.stop()
    connecting = asyncio.create_task(nats_server.connect())
    await asyncio.sleep(0)
    await nats_server.start()
    bus = await connecting
    assert bus.connected
    await bus.close()


async def test_a_server_that_stalls_does_not_block_callers_and_comes_back(
    pair: tuple[Bus, Bus], nats_server: NatsServer
) -> None:
    client, server = pair
    await server.serve("s", decoder, ok)
    nats_server.pause()
    with pytest.raises((BusTimeout, BusUnavailable)):
        await client.request("s", abort(), timeout_s=0.2)
    nats_server.resume()
    assert await client.request_until_answered("s", abort(), deadline_s=60) == Ok()
