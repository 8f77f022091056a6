"""Delivers what the core sends: repeated until answered, in order per peer and attempt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dualpath.bus import Bus, BusError, BusTimeout, PayloadTooLarge
from dualpath.scheduler.actions import Peer, Send
from dualpath.telemetry.logs import get_logger, request_context
from dualpath.wire.codec import Message
from dualpath.wire.control import Abort, Refused
from dualpath.wire.types import Attempt

log = get_logger(__name__)

OnAnswer = Callable[[Send, Message], None]
OnFailure = Callable[[Send, str], bool]


class _Chain:
    def __init__(self) -> None:
        self.waiting: deque[Send] = deque()
        self.task: asyncio.Task[None] | None = None


class Outbox:
    """Owns one task per (peer, attempt) that has something to be delivered.

    `on_answer` and `on_failure` (no answer within `give_up_s`; it says whether to try as long again) are called
    on the event loop.
    """

    def __init__(self, bus: Bus, on_answer: OnAnswer, on_failure: OnFailure) -> None:
        self._bus, self._on_answer, self._on_failure = bus, on_answer, on_failure
        self._chains: dict[tuple[Peer, Attempt], _Chain] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._chains)

    def send(self, send: Send) -> None:
        key = (send.to, send.attempt)
        chain = self._chains.get(key)
        if chain is not None and isinstance(send.message, Abort):
            # What was sent before may arrive or not: NATS keeps the order, so the Abort comes after it.
            self._drop(key)
            chain = None
        if chain is None:
            chain = self._chains[key] = _Chain()
            chain.task = asyncio.create_task(self._deliver_all(key, chain), name="outbox")
            self._tasks.add(chain.task)
            chain.task.add_done_callback(self._ended)
        chain.waiting.append(send)

    def forget(self, peer: Peer) -> None:
        """Nothing more goes to `peer`."""
        for key in [key for key in self._chains if key[0] == peer]:
            self._drop(key)

    def _drop(self, key: tuple[Peer, Attempt]) -> None:
        task = self._chains.pop(key).task
        # It may be this very delivery whose failure the core answers by forgetting the peer.
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _deliver_all(self, key: tuple[Peer, Attempt], chain: _Chain) -> None:
        try:
            with request_context(key[1]):
                while chain.waiting and self._chains.get(key) is chain:
                    await self._deliver(chain.waiting.popleft())
        finally:
            # However it ends: what comes later must not wait in a chain that nobody delivers.
            if self._chains.get(key) is chain:
                del self._chains[key]

    async def _deliver(self, send: Send) -> None:
        while True:
            try:
                answer = await self._bus.request_until_answered(
                    send.to.subject, send.message, deadline_s=send.give_up_s
                )
            except BusTimeout as error:
                log.warning("not delivered", to=send.to.name, reason=str(error))
                if self._on_failure(send, str(error)):
                    continue
                return
            except BusError as error:
                # The message is what is wrong, not the peer, and time mends nothing.
                log.error("cannot be delivered", to=send.to.name, reason=str(error))
                code = "too_large" if isinstance(error, PayloadTooLarge) else "malformed"
                answer = Refused(str(error), code)
            self._on_answer(send, answer)
            return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("delivery failed", exc_info=error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._chains.clear()
