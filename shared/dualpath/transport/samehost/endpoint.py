"""The endpoint whose links read from peers' memory where they are on its host."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from dualpath.memory.shared import SharedMemory
from dualpath.telemetry.logs import get_logger
from dualpath.transport.frames import FrameReader
from dualpath.transport.link import Link
from dualpath.transport.samehost import fence, meeting
from dualpath.transport.samehost.copying import Copies
from dualpath.transport.samehost.link import SameHostLink
from dualpath.transport.samehost.segments import Offered
from dualpath.transport.stream import ByteStream
from dualpath.transport.tcp import TcpEndpoint

log = get_logger(__name__)

_MAX_MEETINGS = 64
"""At a time; more are turned away, and their links do without."""
_REST_S = 0.1


def available() -> bool:
    """This kernel has all that it takes: memory that is sealed against its owner and its readers, and the barrier."""
    probe = SharedMemory("probe", 1)
    probe.close()
    return probe.sealed and fence.available()


class SameHostEndpoint(TcpEndpoint):
    """As TcpEndpoint, which it works with too, but what is written out of pinned `SharedMemory` is read there by
    peers of its kind that are on this host. A link has the memory that was pinned when it was first used for it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._tls is not None:
            raise ValueError("with TLS all is to be encrypted; use a TcpEndpoint")
        self._offered = Offered()
        self._copies = Copies()
        self._meeting: socket.socket | None = None
        self._meetings = 0

    async def start(self, on_message: Any) -> None:
        if available():
            self._meeting_name, self._meeting = meeting.listen()
        await super().start(on_message)
        if self._meeting is not None:
            self._spawn(self._meet(self._meeting))

    async def close(self) -> None:
        await super().close()
        if self._meeting is not None:
            self._meeting.close()
        self._offered.close()
        self._copies.close()

    @property
    def sends_files(self) -> bool:
        return False

    def pin(self, memory: memoryview, shared: SharedMemory | None = None) -> None:
        if shared is not None:
            self._offered.add(shared)

    def _new_link(
        self, stream: ByteStream, reader: FrameReader, peer_meeting: str, **options: Any
    ) -> Link:
        there = peer_meeting if self._meeting is not None else ""
        return SameHostLink(
            stream,
            reader,
            offered=self._offered,
            copies=self._copies,
            hand_over=partial(self._hand_over, there) if there else None,
            spawn=self._spawn,
            **options,
        )

    async def _hand_over(self, name: str, link_id: str, fds: Sequence[int]) -> bool:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await meeting.offer(self._secret, name, link_id, fds)
        except TimeoutError:
            return False

    # ── as the target ──────────────────────────────────────────────────────────────────────────────
    async def _meet(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                log.error("accept_failed", endpoint=self.endpoint_id, reason=str(error))
                await asyncio.sleep(_REST_S)
                continue
            if self._meetings >= _MAX_MEETINGS:
                sock.close()
                continue
            self._meetings += 1
            self._spawn(self._take(sock)).add_done_callback(partial(self._met, sock))

    def _met(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._meetings -= 1
        sock.close()

    async def _take(self, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._deadline_s):
                said, link_id, fds = await meeting.take(sock)
                with meeting.closing(fds):
                    if not hmac.compare_digest(
                        said, meeting.mac(self._secret, self._meeting_name, link_id)
                    ):
                        raise ValueError(
                            "its mac is wrong: give both sides the same cluster secret"
                        )
                    (await self._linked(link_id)).map(fds)
                meeting.taken(sock)
        except (OSError, ValueError, TimeoutError) as error:
            log.warning(
                "memory_refused", endpoint=self.endpoint_id, reason=str(error) or "too late"
            )

    async def _linked(self, link_id: str) -> SameHostLink:
        """The writer may have the link a moment before this side has it."""
        while True:
            for link in self._routes.links:
                if link.link_id == link_id and isinstance(link, SameHostLink):
                    return link
            await self._routes.arrival(self._deadline_s)
