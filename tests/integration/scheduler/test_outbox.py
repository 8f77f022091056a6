"""The outbox over a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest_asyncio
from tests.support.nats import NatsServer
from tests.support.wait import until

from dualpath.bus import Bus
from dualpath.scheduler.actions import Peer, Send
from dualpath.scheduler.outbox import Outbox
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import Address, Attempt

NODE = Peer("node", "decode-0", "1")
ATTEMPT = Attempt("r", 1)
ADDRESS = Address("prefill-0", "1", "127.0.0.1", 1)


def load(stop: int, give_up_s: float = 5.0) -> Send:
    return Send(NODE, ATTEMPT, control.LoadDecode(ATTEMPT, ADDRESS, 0, stop), give_up_s)


@dataclass
class Ends:
    """Both ends of an outbox. `again` is what the core says to what was not answered."""

    outbox: Outbox
    bus: Bus
    deaf: bool = False
    again: bool = False
    fail: bool = False
    got: list[Message] = field(default_factory=list)
    answered: list[Send] = field(default_factory=list)
    given_up: list[Send] = field(default_factory=list)

    async def take(self, message: Message) -> Message | None:
        self.got.append(message)
        return None if self.deaf else control.Ok()

    def on_answer(self, send: Send, answer: Message) -> None:
        assert answer == control.Ok()
        self.answered.append(send)
        if self.fail:
            raise RuntimeError("on purpose")

    def on_failure(self, send: Send, reason: str) -> bool:
        self.given_up.append(send)
        return self.again


@pytest_asyncio.fixture
async def ends(nats_server: NatsServer) -> AsyncIterator[Ends]:
    bus = await nats_server.connect()
    outbox = Outbox(
        bus, lambda send, answer: it.on_answer(send, answer), lambda *a: it.on_failure(*a)
    )
    it = Ends(outbox, bus)
    await bus.serve(NODE.subject, control.to_node, it.take)
    yield it
    await outbox.close()
    assert len(outbox) == 0
    await bus.close()


async def test_messages_about_one_attempt_arrive_in_order(ends: Ends) -> None:
    sends = [load(stop) for stop in range(20)]
    for send in sends:
        ends.outbox.send(send)
    await until(lambda: ends.answered == sends)
    assert ends.got == [send.message for send in sends]
    await until(lambda: len(ends.outbox) == 0)


async def test_what_is_to_be_tried_again_goes_before_what_came_later(ends: Ends) -> None:
    ends.deaf = ends.again = True
    first, second = load(1, give_up_s=0.1), load(2)
    ends.outbox.send(first)
    ends.outbox.send(second)
    await until(lambda: len(ends.given_up) >= 2)
    assert second.message not in ends.got
    ends.deaf = False
    await until(lambda: ends.answered == [first, second])


async def test_what_is_given_up_does_not_hold_up_what_came_later(ends: Ends) -> None:
    ends.deaf = True
    first, second = load(1, give_up_s=0.1), load(2)
    ends.outbox.send(first)
    await until(lambda: ends.given_up == [first])
    ends.deaf = False
    ends.outbox.send(second)
    await until(lambda: ends.answered == [second])


async def test_an_error_in_a_handler_does_not_silence_the_peer(ends: Ends) -> None:
    ends.fail = True
    ends.outbox.send(load(1))
    await until(lambda: len(ends.answered) == 1)
    await until(lambda: len(ends.outbox) == 0)
    ends.fail = False
    ends.outbox.send(load(2))
    await until(lambda: len(ends.answered) == 2)


async def test_a_forgotten_peer_is_sent_nothing_more(ends: Ends) -> None:
    ends.deaf = ends.again = True
    ends.outbox.send(load(1, give_up_s=0.1))
    await until(lambda: ends.given_up)
    ends.outbox.forget(NODE)
    assert len(ends.outbox) == 0
    await until(lambda: "outbox" not in {task.get_name() for task in asyncio.all_tasks()})
