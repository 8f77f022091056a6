"""A node that leaves does not give up what it has because the scheduler is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.support.nats import NatsServer

from dualpath.node.membership import Membership
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.codec import Decoder, Message


def membership(bus: Any, incarnation: str) -> Membership:
    def registration() -> control.RegisterNode:
        return control.RegisterNode(
            "decode-0", incarnation, 1, "decode", "model", 64, 1000, 10, engines=()
        )

    def fetch(number: int) -> control.Fetch:
        raise AssertionError(f"nobody fetches here ({number})")

    def own(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    return Membership(bus, "decode-0", Settings(), registration=registration, fetch=fetch, own=own)


@pytest.mark.parametrize("holds", [True, False], ids=["holds-something", "holds-nothing"])
async def test_a_scheduler_that_stands_still_is_asked_again_while_something_is_held(
    nats_server: NatsServer, holds: bool
) -> None:
    node, scheduler = await nats_server.connect("node"), await nats_server.connect("scheduler")
    asked: list[Message] = []

    async def answer(message: Message) -> Message | None:
        asked.append(message)
        # The first is answered by nobody in time.
        return control.Ok() if len(asked) > 1 else None

    await scheduler.serve(control.SCHEDULER, Decoder(control.LeaveNode), answer)
    await membership(node, "life").leave(lambda: holds and len(asked) < 2)
    assert set(asked) <= {control.LeaveNode("decode-0", "life")}
    assert len(asked) >= 2 if holds else len(asked) <= 1
    await node.close()
    await scheduler.close()


async def test_without_a_scheduler_it_leaves_at_once(nats_server: NatsServer) -> None:
    node = await nats_server.connect("node")
    await membership(node, "life").leave(lambda: True)
    await node.close()
