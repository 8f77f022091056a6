"""Messages that have arrived on a link and wait for the handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import MessageHandler, MessageRefused, TransportError
from dualpath.transport.frames import MESSAGE_WINDOW, Header, Kind, MalformedFrame, Status
from dualpath.wire.codec import MalformedMessage
from dualpath.wire.types import Address

log = get_logger(__name__)


class Inbox:
    """Hands messages to the handler in order, one at a time, beside the receipt of other frames.

    It holds as many as a peer may have unacknowledged, so receiving never waits for the handler.
    """

    def __init__(
        self,
        peer: Address,
        handler: MessageHandler,
        answer: Callable[[bytes], None],
        on_malformed: Callable[[MalformedFrame], None],
    ) -> None:
        """`on_malformed` hears of a message that is none, and must call `close`."""
        self._peer = peer
        self._handler = handler
        self._answer = answer
        self._on_malformed = on_malformed
        self._queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._unanswered = 0
        self._closed = False

    def put(self, op: int, message: bytes) -> None:
        """Raises MalformedFrame where the peer exceeds its window."""
        if self._unanswered >= MESSAGE_WINDOW:
            raise MalformedFrame(f"more than {MESSAGE_WINDOW} messages came unacknowledged")
        self._unanswered += 1
        self._queue.put_nowait((op, message))

    @property
    def busy(self) -> bool:
        """Messages wait for the handler."""
        return self._unanswered > 0

    def close(self) -> None:
        """Lets the handler finish what it does; the messages behind it are dropped, unacknowledged."""
        self._closed = True
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Until closed and the handler has returned; cancelling cancels the handler."""
        while True:
            entry = await self._queue.get()
            if entry is None or self._closed:
                return
            op, message = entry
            try:
                status = await self._handle(message)
            except MalformedMessage as error:
                self._on_malformed(MalformedFrame(f"a message that cannot be read: {error}"))
                return
            self._unanswered -= 1
            self._answer(Header(Kind.MESSAGE_ACK, status, op=op).pack())

    async def _handle(self, message: bytes) -> Status:
        try:
            await self._handler(self._peer, message)
        except MessageRefused as refusal:
            log.info("message_refused", peer=self._peer.endpoint_id, reason=str(refusal))
            return Status.REFUSED
        except MalformedMessage:
            raise
        except TransportError as refusal:
            log.warning("message_refused", peer=self._peer.endpoint_id, reason=str(refusal))
            return Status.REFUSED
        except Exception:
            log.exception("message_refused", peer=self._peer.endpoint_id, nbytes=len(message))
            return Status.REFUSED
        return Status.OK
