"""One shard as its clients see it: calls and their answers, and whether it is there at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.tasks import Tasks, stop
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint, LinkError, MessageRefused, PeerRefused, TransportError
from dualpath.wire.codec import Message, encode
from dualpath.wire.store import (
    CancelRead,
    CancelWrite,
    MatchDone,
    Ping,
    Read,
    Release,
    StatDone,
    StatRequest,
    StoreRefused,
    WriteCommit,
    WriteOpen,
)
from dualpath.wire.types import Address

log = get_logger(__name__)
Answer = TypeVar("Answer", bound=Message)
Status = TypeVar("Status", ReadStatus, WriteStatus)

PING_S = 0.5
"""A call without an answer for so long asks whether it is still open at the shard."""

LONG = (Read, WriteOpen, WriteCommit)
"""Calls that the shard keeps open, and knows when it is asked. The others are answered at once."""

TELL_TIMEOUT_S = 2.0
PROBE_TIMEOUT_S = 2.0
LONGEST_PATIENCE = 10
"""Times the silence that is allowed: so long a shard that gives others what they asked for may owe an answer."""
PROBE_DELAYS_S = (0.0, 0.1, 0.2, 0.4, 1.0)
"""Pauses between the attempts to reach a shard that was lost; the last one repeats."""


class ShardUnavailable(Exception):
    """The shard did not do it; the text says why."""


def note(link: ShardLink, what: str, why: BaseException) -> None:
    """Log that a shard did not serve a call."""
    text = "the deadline has passed" if isinstance(why, TimeoutError) else str(why)
    log.info("a shard did not serve", call=what, shard=link.address.endpoint_id, why=text)


def statuses_of(kind: type[Status], raw: bytes, keys: list[bytes]) -> list[Status]:
    """A shard's statuses; raises ShardUnavailable where they are none of `kind`, or not one per key."""
    try:
        statuses = [kind(status) for status in raw]
    except ValueError as error:
        raise ShardUnavailable(f"its answer is malformed: {error}") from error
    if len(statuses) != len(keys):
        raise ShardUnavailable(f"it answered for {len(statuses)} keys, not {len(keys)}")
    return statuses


class ShardLink:
    """Calls to one shard over an endpoint that its owner also gives `on_message` of.

    A shard that was lost fails calls at once, so that nobody waits for it, and is tried in the background
    until it is back. Its address carries no incarnation: whoever listens there is the shard.
    """

    def __init__(
        self, endpoint: Endpoint, address: Address, tasks: Tasks, *, stall_s: float | None = None
    ) -> None:
        """With `stall_s` a shard that does not even take a question for so long is lost; else its link decides."""
        self.address = address
        self.stall_s = stall_s
        self.up = True
        self._endpoint = endpoint
        self._tasks = tasks
        self._ops = count(1)
        self._calls: dict[int, ShardCall] = {}
        self._listening: dict[asyncio.Timeout, tuple[float, float]] = {}
        """Who bears the shard's silence: for how long, and until when at most."""

    @asynccontextmanager
    async def unless_silent(self, silence_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError once nothing at all has come from the shard for `silence_s`: an answer may be late
        for what others asked for before, which is on its way through the same NIC."""
        async with asyncio.timeout(silence_s) as limit:
            last = asyncio.get_running_loop().time() + LONGEST_PATIENCE * silence_s
            self._listening[limit] = silence_s, last
            try:
                yield
            finally:
                del self._listening[limit]

    def heard(self) -> None:
        """Something came from the shard: a message, or a block."""
        now = asyncio.get_running_loop().time()
        for limit, (silence_s, last) in self._listening.items():
            if not limit.expired():
                limit.reschedule(min(now + silence_s, last))

    def call(self) -> ShardCall:
        """Open a call; close it in any case."""
        call = ShardCall(self, next(self._ops))
        self._calls[call.op] = call
        return call

    def closed(self, call: ShardCall) -> None:
        self._calls.pop(call.op, None)

    async def send(self, message: Message, to: Address | None = None) -> None:
        """Send one message; raises ShardUnavailable, also where the shard refuses it."""
        try:
            await self._endpoint.send(to or self.address, encode(message))
        except (LinkError, PeerRefused) as error:
            self.lost(str(error))
            raise ShardUnavailable(str(error)) from error
        except TransportError as error:
            raise ShardUnavailable(str(error)) from error

    def tell(self, message: Release | CancelRead | CancelWrite) -> None:
        """Send what nobody waits for, in the background; a shard that is not there is not told."""
        if self.up:
            self._tasks.spawn(self._tell(message), type(message).__name__)

    async def _tell(self, message: Release | CancelRead | CancelWrite) -> None:
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await self.send(message)
        except (ShardUnavailable, TimeoutError) as error:
            log.debug("a shard was not told", shard=self.address.endpoint_id, error=str(error))

    def received(self, peer: Address, message: Message) -> None:
        """Take a message of the shard. Raises MessageRefused for a ping about a call that is over."""
        self.heard()
        op: int = message.op  # type: ignore[attr-defined]
        call = self._calls.get(op)
        if call is None:
            if isinstance(message, Ping):
                raise MessageRefused(f"call {op} is over")
            self.missed(message)
        elif not isinstance(message, Ping):
            call.received(peer, message)

    def missed(self, message: Message) -> None:
        """Whoever waited for this answer was cancelled: what it grants would be held for nobody."""
        if isinstance(message, MatchDone) and message.lease:
            # Also to one that counts as lost: it has just answered, as one that was stopped does when it goes on.
            self._tasks.spawn(self._tell(Release(message.lease)), "release a lease of nobody")

    def lost(self, why: str) -> None:
        """The shard does not answer: fail what is open, and look for it in the background."""
        if not self.up:
            return
        self.up = False
        log.warning("storage shard lost", shard=self.address.endpoint_id, why=why)
        self._fail_calls(why)
        self._tasks.spawn(self._probe(), f"probe {self.address.endpoint_id}")

    def close(self) -> None:
        """Fail what is open and take no more calls."""
        self.up = False
        self._fail_calls("the store is closing")

    def _fail_calls(self, why: str) -> None:
        for call in self._calls.values():
            call.failed(why)

    async def _probe(self) -> None:
        for attempt in count():
            await asyncio.sleep(PROBE_DELAYS_S[min(attempt, len(PROBE_DELAYS_S) - 1)])
            call = self.call()
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    await call.ask(StatRequest(call.op), StatDone, probing=True)
                break
            except (ShardUnavailable, TimeoutError):
                continue
            finally:
                call.close()
        self.up = True
        log.info("storage shard is back", shard=self.address.endpoint_id)


class ShardCall:
    """One call to a shard: one question and its answer at a time."""

    def __init__(self, link: ShardLink, op: int) -> None:
        self.op = op
        self.peer = link.address
        """The life of the shard that answered last: what belongs to this call must not reach another."""
        self._link = link
        self._answer: asyncio.Future[Message] | None = None

    async def ask(self, message: Message, kind: type[Answer], *, probing: bool = False) -> Answer:
        """Send `message` and wait for an answer of type `kind`. Raises ShardUnavailable; the time is limited by
        the caller."""
        if not (self._link.up or probing):
            raise ShardUnavailable(f"shard {self.peer.endpoint_id} is not there")
        self._answer = asyncio.get_running_loop().create_future()
        await self._tell(message)
        answer = await self._wait(self._answer, isinstance(message, LONG))
        self._answer = None
        if isinstance(answer, StoreRefused):
            raise ShardUnavailable(answer.reason)
        if not isinstance(answer, kind):
            raise ShardUnavailable(
                f"shard {self.peer.endpoint_id} answered {type(message).__name__} "
                f"with {type(answer).__name__}"
            )
        return answer

    async def _tell(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._link.stall_s):
                await self._link.send(message, self.peer)
        except TimeoutError as error:
            why = f"it took no message for {self._link.stall_s} s"
            self._link.lost(why)
            raise ShardUnavailable(why) from error

    async def _wait(self, answer: asyncio.Future[Message], ping: bool) -> Message:
        await asyncio.wait({answer}, timeout=PING_S if ping else None)
        while not answer.done():
            asking = asyncio.create_task(self._tell(Ping(self.op)))
            try:
                either: set[asyncio.Future[Any]] = {answer, asking}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    asking.result()
                    await asyncio.wait({answer}, timeout=PING_S)
            finally:
                await stop(asking)
        return answer.result()

    def received(self, peer: Address, message: Message) -> None:
        self.peer = peer
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def failed(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ShardUnavailable(why))

    def close(self) -> None:
        answer, self._answer = self._answer, None
        # One that came just as its asker was cancelled was taken by nobody.
        if answer is not None and not answer.cancel() and answer.exception() is None:
            self._link.missed(answer.result())
        self._link.closed(self)
