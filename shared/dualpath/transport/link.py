"""A connection to one peer on one lane, after the handshake; either side sends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.file_part import Piece
from dualpath.telemetry.logs import get_logger
from dualpath.transport import sockets
from dualpath.transport.api import LinkError, MessageHandler, Revoked, TransportError
from dualpath.transport.frames import BUSY, FrameReader, Header, Kind, MalformedFrame, Status
from dualpath.transport.inbox import Inbox
from dualpath.transport.outbox import Outbox
from dualpath.transport.patience import Patience
from dualpath.transport.receiving import PeerGone, Receiver
from dualpath.transport.regions import Regions
from dualpath.transport.sending import Outcome, Sender
from dualpath.transport.stream import ByteStream
from dualpath.wire.types import Address

log = get_logger(__name__)

HEARTBEATS = 4
"""So many times within the shorter of both sides' deadlines a link says that it is alive."""
_FRESH_S = 0.05
"""A link that was used less than this ago needs no second look."""


class NotStarted(LinkError):
    """The link was lost before a byte of the operation left: it may be tried on another one."""


class Link:
    """One owner runs `run` until the link is lost; all else may be called meanwhile from the same loop.

    Liveness: each side says ALIVE several times per deadline. Who waits for bytes and hears nothing for
    the whole deadline cuts the link, so an operation ends even if the peer stands still, and a connection
    that the network dropped while it was idle is found before it is needed. So does who is owed an answer, or cannot
    get rid of its bytes, and hears for the whole deadline nothing but that the peer lives. A slow NIC at the
    peer, or a handler that takes its time, is neither: such a peer says that it is busy.
    """

    def __init__(
        self,
        sock: ByteStream,
        reader: FrameReader,
        *,
        link_id: str,
        peer: Address,
        lane: Lane,
        dialed_here: bool,
        nic: Nic,
        regions: Regions,
        on_message: MessageHandler,
        deadline_s: float,
        peer_deadline_s: float,
    ) -> None:
        self.link_id = link_id
        self.peer = peer
        self.lane = lane
        self.dialed_here = dialed_here
        self.lost: str | None = None
        """Why the link ended, once it has."""
        self._sock = sock
        self._deadline_s = deadline_s
        self._heartbeat_s = min(deadline_s, peer_deadline_s) / HEARTBEATS
        self._loop = asyncio.get_running_loop()
        self._dead = asyncio.Event()
        self._outbox = Outbox(sock, self.fail)
        self._sender = self._new_sender(nic, lane)

        def acknowledge(frame: bytes) -> None:
            nic.charge(lane, "tx", len(frame))
            self._outbox.control(frame)

        self._inbox = Inbox(peer, on_message, acknowledge, self._misbehaves)
        self._receiver = Receiver(
            sock,
            reader,
            lane=lane,
            nic=nic,
            regions=regions,
            inbox=self._inbox,
            sender=self._sender,
            outbox=self._outbox,
            on_heard=self._heard,
            on_transfer=self._transfer,
            on_pull=self._pull,
        )
        self._listeners: list[asyncio.Future[None]] = []
        self._patience = Patience(deadline_s)

    def __str__(self) -> str:
        return f"{self.peer.endpoint_id} at {self.peer.host}:{self.peer.port}"

    async def run(self) -> None:
        """Serve the link until it is lost. Cancelling closes it."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._inbox.run())
                halves = group.create_task(self._receive()), group.create_task(self._watch())
                await self._dead.wait()
                for half in halves:
                    half.cancel()
        finally:
            self.fail("it was closed", graceful=True)

    def fail(self, reason: str, *, graceful: bool = False) -> None:
        """End the link and every operation on it. Unless `graceful`, what the kernel holds is not sent."""
        if self.lost is not None:
            return
        self.lost = reason
        self._outbox.close(graceful=graceful)
        self._receiver.close()
        if graceful:
            self._sock.close()
        else:
            sockets.abort(self._sock)
        self._sender.close()
        self._inbox.close()
        self._heard()
        self._dead.set()

    def control(self, frame: bytes) -> None:
        """Send a frame ahead of everything that waits."""
        self._outbox.control(frame)

    def drop(self, key: int) -> None:
        """From now on nothing that arrives for `key` is written to its region."""
        self._receiver.drop(key)

    @property
    def fresh(self) -> bool:
        """Something was heard a moment ago."""
        return self.lost is None and self._receiver.silent_s <= _FRESH_S

    async def ready(self) -> bool:
        """False where the link turns out to be lost. One that is silent for longer than its peer's
        heartbeats take is used only once something is heard again: nothing is sent into the void."""
        if self.lost is None and not self.fresh:
            try:
                self._receiver.peek()
            except PeerGone as error:
                self.fail(str(error))
        while self.lost is None and self._receiver.silent_s > 2 * self._heartbeat_s:
            heard: asyncio.Future[None] = self._loop.create_future()
            self._listeners.append(heard)
            await heard
        return self.lost is None

    async def write(self, key: int, offset: int, source: Sequence[Piece], imm: int) -> None:
        """See Endpoint.write. Raises NotStarted where another link may be tried."""
        outcome = await self._sender.write(key, offset, source, imm)
        if outcome.status is Status.REVOKED:
            raise Revoked(f"{self} has closed the region: the request ended there")
        self._check(outcome)

    async def send(self, message: bytes) -> None:
        """See Endpoint.send. Raises NotStarted where another link may be tried."""
        outcome = await self._sender.send(message)
        if outcome.status is Status.REFUSED:
            raise TransportError(f"{self} could not handle a message; its log says why")
        self._check(outcome)

    def _new_sender(self, nic: Nic, lane: Lane) -> Sender:
        return Sender(self._outbox, nic, lane)

    def _transfer(self, header: Header, payload: bytes) -> None:
        """A frame of a transport that moves payload beside the link. Raises MalformedFrame."""
        raise MalformedFrame(
            f"{header.kind.name}: the peer moves KV by RDMA, this endpoint over TCP; set the same "
            "transport on both sides"
        )

    def _pull(self, header: Header, payload: bytes) -> int:
        """A frame says where its payload lies in the peer's memory: move it; how many bytes those were. Raises
        MalformedFrame, PeerGone."""
        raise MalformedFrame("PULL: the peer was not told that this endpoint reads its memory")

    def _check(self, outcome: Outcome) -> None:
        if outcome.status is Status.OK:
            return
        if outcome.status is None:
            kind = LinkError if outcome.started else NotStarted
            raise kind(f"the link to {self} was lost: {self.lost}")
        raise LinkError(
            f"{self} closes the link: it never issued the key, or the write lies outside the region"
        )

    def _heard(self) -> None:
        if self._listeners:
            for listener in self._listeners:
                if not listener.done():
                    listener.set_result(None)
            self._listeners.clear()

    async def _receive(self) -> None:
        try:
            await self._receiver.run()
        except PeerGone as error:
            self.fail(str(error))
        except MalformedFrame as error:
            self._misbehaves(error)

    def _misbehaves(self, error: MalformedFrame) -> None:
        if self.lost is None:
            log.warning("peer_misbehaves", peer=str(self), reason=str(error))
            self.fail(f"it was cut because of {error}", graceful=True)

    async def _watch(self) -> None:
        interval = self._heartbeat_s
        while True:
            before = self._loop.time()
            await asyncio.sleep(interval)
            if self._loop.time() - before > 2 * interval:
                # This process stood still itself: its peers get another full deadline.
                self._forgive()
            self._receiver.listen()
            if self._receiver.silent_s > self._deadline_s:
                log.warning("link_cut", peer=str(self), silent_s=self._deadline_s)
                self.fail(f"silent for {self._deadline_s:g} s; is the peer stopped, or cut off?")
            elif self._stalled():
                log.warning("link_cut", peer=str(self), stalled_s=self._deadline_s)
                self.fail(f"it lives, but did nothing for {self._deadline_s:g} s that it owes")
            elif self._busy:
                self._outbox.control(Header(Kind.ALIVE, BUSY).pack())
            elif self._outbox.idle:
                self._outbox.control(Header(Kind.ALIVE).pack())

    @property
    def _busy(self) -> bool:
        """What the peer has sent waits for this side."""
        return self._receiver.busy or self._inbox.busy

    @property
    def _owed(self) -> bool:
        """The peer is to answer something, or to take bytes."""
        return self._sender.owed or not self._outbox.idle

    def _stalled(self) -> bool:
        # What waits for this side's own NIC may be the very answer.
        owes = self._owed and not self._receiver.busy
        signs: Hashable = (self._receiver.signs, self._outbox.taken_bytes)
        return self._patience.exhausted(self._loop.time(), owes=owes, signs=signs)

    def _forgive(self) -> None:
        self._receiver.forgive()
        self._patience.renew()
