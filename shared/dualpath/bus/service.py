"""One served subject: decoding, the handlers' tasks, their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from dualpath.bus.errors import BusError, PayloadTooLarge
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger, request_context
from dualpath.wire.codec import Decoder, MalformedMessage, Message
from dualpath.wire.control import Refused

log = get_logger(__name__)

Handler = Callable[[Message], Awaitable[Message | None]]
Answer = Callable[[str, Message], Awaitable[None]]

MAX_RUNNING = 1024
"""Handlers of one subject that run at a time; further messages wait in order."""


class Served:
    """Owns the tasks of all messages of one subject that are being handled."""

    def __init__(self, subject: str, decoder: Decoder, handler: Handler, answer: Answer) -> None:
        self.subject = subject
        self.subscription: Subscription | None = None
        self._decoder, self._handler, self._answer = decoder, handler, answer
        self._room = asyncio.Semaphore(MAX_RUNNING)
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, msg: Msg) -> None:
        """Start handling a message; waits only where MAX_RUNNING are being handled."""
        await self._room.acquire()
        # Tasks run in the order in which they were made: handlers start in order of arrival.
        task = asyncio.create_task(self._handle(msg), name=f"bus:{self.subject}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("answering failed", subject=self.subject, exc_info=error)

    async def _handle(self, msg: Msg) -> None:
        try:
            message: Message = self._decoder(msg.data)
        except MalformedMessage as error:
            log.warning("malformed message", subject=self.subject, reason=str(error))
            await self._reply(msg, Refused(f"malformed message: {error}", code="malformed"))
            return
        if msg.headers:
            # The task is this message's own.
            tracing.enter(msg.headers.get(tracing.HEADER, ""))
        with request_context(getattr(message, "attempt", None)):
            await self._reply(msg, await self._result(message))

    async def _result(self, message: Message) -> Message | None:
        kind = type(message).__name__
        try:
            return await self._handler(message)
        except Exception as error:
            # Whatever a handler raises, its caller gets an answer.
            log.error("handler failed", subject=self.subject, message=kind, exc_info=error)
            return Refused(f"{kind} could not be handled: {error}", code="internal")

    async def _reply(self, msg: Msg, message: Message | None) -> None:
        if message is None or not msg.reply:
            return
        try:
            await self._answer(msg.reply, message)
        except PayloadTooLarge as error:
            log.error("answer too large", subject=self.subject, reason=str(error))
            await self._reply(msg, Refused(f"the answer is too large: {error}", code="internal"))
        except BusError as error:
            # Whoever asked asks again.
            log.debug("answer not sent", subject=self.subject, reason=str(error))

    async def drain(self, timeout_s: float) -> None:
        """Unsubscribe; take what the server has already sent."""
        if self.subscription is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.subscription.drain()  # type: ignore[no-untyped-call]
        except (nats.errors.Error, OSError, TimeoutError) as error:
            log.debug("drain failed", subject=self.subject, reason=str(error))

    async def finish(self, timeout_s: float) -> None:
        """Wait for the running handlers; cancel those that need longer."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
