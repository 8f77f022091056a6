"""A connection to NATS that comes back by itself, with requests, publishing and serving."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from dualpath.bus.errors import (
    BusTimeout,
    BusUnavailable,
    MalformedAnswer,
    PayloadTooLarge,
)
from dualpath.bus.service import Handler, Served
from dualpath.telemetry import tracing
from dualpath.telemetry.logs import get_logger
from dualpath.wire.codec import MAX_MESSAGE_BYTES, Decoder, MalformedMessage, Message, encode
from dualpath.wire.control import answer

log = get_logger(__name__)

CONNECT_DEADLINE_S = 15.0
"""How long `connect` waits for a server that is still starting, and `serve` for one that is slow."""

_TRY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_PING_S = 2
_LOOK_S = 0.25
_MAX_UNSENT_BYTES = 64 << 20
_DRAIN_S = 2.0


class _Connection(Client):
    async def _process_op_err(self, e: Exception) -> None:
        """Ends the connection. What was not sent is lost with it: the library would write it into the broken
        transport and fail on that, before it told anybody of the loss."""
        self._pending, self._pending_data_size = [], 0
        await super()._process_op_err(e)


class Bus:
    """One process's place on the control plane.

    Core NATS delivers at most once, so whatever matters is a request, repeated until it is answered.
    Nothing is kept for a server that is away: calls fail at once with BusUnavailable, and the
    subscriptions are there again as soon as the server is. Make one with `Bus.connect`; `close` it.
    """

    def __init__(self, url: str, name: str, user: str | None, password: str | None) -> None:
        self._url, self._name = url, name
        # Untyped, for nats-py annotates as int what may well be a part of a second.
        self._options: dict[str, Any] = {
            "reconnect_time_wait": _FIRST_PAUSE_S,
            "connect_timeout": _TRY_S,
            **({"user": user, "password": password} if user else {}),
        }
        self._client: Client | None = None
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._next_token = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._served: list[Served] = []
        self._subscribing = asyncio.Lock()
        self._lost = asyncio.Event()
        self._closing = False
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls, url: str, name: str, *, user: str | None = None, password: str | None = None
    ) -> Bus:
        """Connect to the server at `url` (`nats://host:port`), waiting CONNECT_DEADLINE_S for it to start.

        Raises BusUnavailable when it does not, or at once when it refuses user and password.
        """
        bus = cls(url, name, user, password)
        deadline, pause = time.monotonic() + CONNECT_DEADLINE_S, _FIRST_PAUSE_S
        while True:
            try:
                await bus._open()
                break
            except (OSError, nats.errors.Error, TimeoutError) as error:
                if "authorization" in str(error).lower():
                    raise BusUnavailable(
                        f"the NATS server at {url} refused the login; "
                        "check nats_user and nats_password"
                    ) from error
                if time.monotonic() + pause > deadline:
                    raise BusUnavailable(
                        f"no NATS server at {url} within {CONNECT_DEADLINE_S:g} s; "
                        "start one, or check nats_url"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        bus._keeper = asyncio.create_task(bus._keep_connected(), name="bus-keeper")
        return bus

    @property
    def connected(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """Bytes that one message may have: what the server takes, and no more than receivers accept."""
        return min(self._client.max_payload if self._client else 0, MAX_MESSAGE_BYTES)

    # ── sending ────────────────────────────────────────────────────────────────────────────────────
    async def request(self, subject: str, message: Message, *, timeout_s: float = 2.0) -> Message:
        """One try. Returns an answer of `wire.control.answer`, Refused included.

        Raises BusTimeout, BusUnavailable (not connected, nobody serves `subject`, connection lost
        while waiting), PayloadTooLarge, MalformedAnswer.
        """
        try:
            with self._expected() as (inbox, answered):
                async with asyncio.timeout(timeout_s):
                    await self._send(subject, encode(message), reply=inbox)
                    msg = await answered
        except TimeoutError:
            raise BusTimeout(
                f"no answer to {type(message).__name__} on {subject} within {timeout_s:g} s"
            ) from None
        if msg.headers and msg.headers.get("Status") == "503":
            raise BusUnavailable(f"nobody serves {subject}")
        try:
            reply: Message = answer(msg.data)
        except MalformedMessage as error:
            raise MalformedAnswer(
                f"malformed answer to {type(message).__name__} on {subject}: {error}"
            ) from error
        return reply

    async def request_until_answered(
        self, subject: str, message: Message, *, deadline_s: float, try_s: float = 1.0
    ) -> Message:
        """Repeat a request until it is answered; the receiver's handler must be idempotent.

        Raises BusTimeout after `deadline_s`, saying what the last full try met; PayloadTooLarge and
        MalformedAnswer at once.
        """
        deadline, pause = time.monotonic() + deadline_s, _FIRST_PAUSE_S
        met: BusTimeout | BusUnavailable | None = None
        while True:
            left = deadline - time.monotonic()
            try:
                return await self.request(subject, message, timeout_s=max(min(try_s, left), 0.001))
            except (BusTimeout, BusUnavailable) as error:
                # That a try which the deadline cut short was not answered tells less than what one before met.
                if met is None or left >= try_s or isinstance(error, BusUnavailable):
                    met = error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BusTimeout(
                        f"{type(message).__name__} on {subject} was not answered "
                        f"within {deadline_s:g} s; last try: {met}"
                    ) from met
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def publish(self, subject: str, message: Message) -> None:
        """Send without an answer; at most once. Raises BusUnavailable, PayloadTooLarge."""
        await self._send(subject, encode(message))

    @contextmanager
    def _expected(self) -> Iterator[tuple[str, asyncio.Future[Msg]]]:
        """A reply subject, and the future of the first message that arrives there."""
        self._next_token += 1
        token = str(self._next_token)
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            yield f"{self._inbox}.{token}", future
        finally:
            del self._waiting[token]
            if not future.cancel() and not future.cancelled():
                # Who left before it was told that the connection is lost has an error of its own.
                future.exception()

    async def _send(self, subject: str, payload: bytes, reply: str = "") -> None:
        client = self._client
        if client is None or not client.is_connected:
            raise BusUnavailable(f"not connected to the NATS server at {self._url}")
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(subject, len(payload), self.max_payload)
        if client.pending_data_size > _MAX_UNSENT_BYTES:
            raise BusUnavailable(f"the NATS server at {self._url} takes no more data")
        try:
            parent = tracing.current()
            headers = {tracing.HEADER: parent} if parent else None
            await client.publish(subject, payload, reply=reply, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"could not send to {subject}: {error}") from error

    # ── serving ────────────────────────────────────────────────────────────────────────────────────
    async def serve(self, subject: str, decoder: Decoder, handler: Handler) -> None:
        """Handle messages on `subject` until `close`, each in a task of its own.

        Handlers start in order of arrival (everything before a handler's first await is in order);
        what one returns is the answer, None is none. A malformed message is answered
        Refused("malformed"), a failing handler is logged and answered Refused("internal").
        """
        served = Served(subject, decoder, handler, self._answer)
        async with self._subscribing:
            self._served.append(served)
            client = self._client
            if client is None or not client.is_connected:
                return
            try:
                async with asyncio.timeout(CONNECT_DEADLINE_S):
                    served.subscription = await client.subscribe(subject, cb=served.take)
                    # The caller may then tell others to send: the server, which may be slow, must know of it before.
                    await self._round_trip(client)
            except (nats.errors.Error, OSError, TimeoutError, BusUnavailable) as error:
                # The keeper subscribes on the next connection.
                log.debug("subscribing failed", subject=subject, reason=str(error))

    async def _answer(self, to: str, message: Message) -> None:
        await self._send(to, encode(message))

    # ── the connection ─────────────────────────────────────────────────────────────────────────────
    async def _open(self) -> None:
        client = _Connection()

        async def closed() -> None:
            if client is self._client:
                self._lost.set()

        async def failed(error: Exception) -> None:
            log.debug("bus error", reason=str(error) or type(error).__name__)

        try:
            async with asyncio.timeout(2 * _TRY_S), self._subscribing:
                await client.connect(
                    self._url,
                    name=self._name,
                    # One mechanism for every way of losing a connection: the keeper makes a new one.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    ping_interval=_PING_S,
                    pending_size=0,
                    closed_cb=closed,
                    error_cb=failed,
                    **self._options,
                )
                await client.subscribe(f"{self._inbox}.*", cb=self._take_answer)
                for served in self._served:
                    served.subscription = await client.subscribe(served.subject, cb=served.take)
                await self._round_trip(client)
                self._lost.clear()
                self._client = client
        except BaseException:
            await self._dispose(client)
            raise

    async def _round_trip(self, client: Client) -> None:
        """Return when the server has handled all that was given to `client` before.

        Not `client.flush`: its ping overtakes commands that the client has not written yet.
        """
        with self._expected() as (inbox, came_back):
            await client.publish(inbox)
            await came_back

    async def _take_answer(self, msg: Msg) -> None:
        future = self._waiting.get(msg.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(msg)

    async def _keep_connected(self) -> None:
        while not self._closing:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._lost.wait()
            except TimeoutError:
                if self.connected:
                    continue
            await self._connect_again()

    async def _connect_again(self) -> None:
        old, self._client = self._client, None
        log.warning("bus connection lost", url=self._url)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    BusUnavailable(f"the connection to the NATS server at {self._url} was lost")
                )
        if old is not None:
            await self._dispose(old)
        pause = _FIRST_PAUSE_S
        while not self._closing:
            try:
                await self._open()
            except Exception as error:
                # Whatever the library makes of what answers at the address: without its keeper the process would
                # stay mute for good.
                log.debug("bus still unreachable", exc_info=error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                log.info("bus connection restored", url=self._url)
                return

    @staticmethod
    async def _dispose(client: Client) -> None:
        try:
            async with asyncio.timeout(1.0):
                await client.close()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            log.debug("bus close failed", reason=str(error) or type(error).__name__)

    async def close(self) -> None:
        """Take no more messages, let running handlers end (cancel them after 2 s), disconnect."""
        if self._closing:
            return
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self.connected:
            await asyncio.gather(*(served.drain(_DRAIN_S) for served in self._served))
        for served in self._served:
            await served.finish(_DRAIN_S)
        client, self._client = self._client, None
        if client is not None:
            await self._dispose(client)
