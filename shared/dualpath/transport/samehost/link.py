"""A link whose ends may be on one host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from dualpath.lanes.api import Lane, Nic
from dualpath.telemetry.logs import get_logger
from dualpath.transport.frames import Header, MalformedFrame
from dualpath.transport.link import Link
from dualpath.transport.receiving import PeerGone
from dualpath.transport.samehost import segments
from dualpath.transport.samehost.copying import Copies
from dualpath.transport.samehost.fence import fence
from dualpath.transport.samehost.segments import Mapped, Offered, Word
from dualpath.transport.samehost.sending import PullingSender
from dualpath.transport.sending import Sender

log = get_logger(__name__)


class SameHostLink(Link):
    """Memory is handed over when the first write is made that has a use for it."""

    def __init__(
        self,
        *args: Any,
        offered: Offered,
        copies: Copies,
        hand_over: Callable[[str, Sequence[int]], Awaitable[bool]] | None,
        spawn: Callable[[Coroutine[Any, Any, int]], asyncio.Task[int]],
        **options: Any,
    ) -> None:
        """`hand_over` gives descriptors to the peer, for the link of this id; None where it wants none."""
        self._offered = offered
        self._copies = copies
        self._hand_over = hand_over
        self._spawn = spawn
        self._word: Word | None = None
        self._attaching: asyncio.Task[int] | None = None
        self._mapped: Mapped | None = None
        super().__init__(*args, **options)

    def _new_sender(self, nic: Nic, lane: Lane) -> Sender:
        return PullingSender(self._outbox, nic, lane, offered=self._offered, attach=self._attach)

    # ── as the writer ──────────────────────────────────────────────────────────────────────────────
    async def _attach(self) -> int:
        """How many segments the peer has mapped."""
        if self._hand_over is None or self.lost is not None:
            return 0
        if self._attaching is None:
            self._attaching = self._spawn(self._attached(self._hand_over))
        return await asyncio.shield(self._attaching)

    async def _attached(self, hand_over: Callable[[str, Sequence[int]], Awaitable[bool]]) -> int:
        if self.lost is not None:
            return 0
        fds = tuple(self._offered.fds)
        try:
            word = self._word = Word()
            if not word.shared.sealed or not await hand_over(self.link_id, (word.shared.fd, *fds)):
                return 0
        except OSError as error:
            # Too many open files, for example: the link does without.
            log.warning("memory_not_shared", peer=str(self), reason=str(error))
            return 0
        log.info("memory_shared", peer=str(self), lane=self.lane.name, segments=len(fds))
        return len(fds)

    def fail(self, reason: str, *, graceful: bool = False) -> None:
        """As of any link; afterwards nothing counts at the peer that it reads in this process's memory."""
        if self.lost is None and self._word is not None:
            self._word.give_up()
            if isinstance(self._sender, PullingSender) and self._sender.reading:
                fence()
        super().fail(reason, graceful=graceful)
        self._word = self._mapped = None

    # ── as the target ──────────────────────────────────────────────────────────────────────────────
    def map(self, fds: Sequence[int]) -> None:
        """The peer's memory. Raises ValueError, OSError."""
        if self._mapped is not None or self.lost is not None:
            raise ValueError("memory came a second time, or too late")
        self._mapped = Mapped(fds)

    def _pull(self, header: Header, payload: bytes) -> int:
        mapped = self._mapped
        if mapped is None:
            raise MalformedFrame("a PULL came before memory was shared")
        sources = mapped.pieces(segments.unpack(payload))
        nbytes = sum(source.size for source in sources)
        targets = self._receiver.target(header, nbytes)
        if targets is None:
            return 0
        self._copies.copy(sources, targets)
        if mapped.given_up:
            raise PeerGone("the peer has given it up")
        return nbytes
