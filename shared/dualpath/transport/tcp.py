"""The endpoint over TCP: listens, dials on demand, and keeps one link per peer and lane."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.file_part import FilePart, Piece
from dualpath.telemetry.logs import get_logger
from dualpath.transport import greeting, handshake, sockets
from dualpath.transport.accepting import Accepts
from dualpath.transport.api import (
    Endpoint,
    LinkError,
    MessageHandler,
    PeerRefused,
    Region,
    Source,
)
from dualpath.transport.dialing import Dials
from dualpath.transport.frames import FrameReader, MalformedFrame
from dualpath.transport.greeting import Greeter
from dualpath.transport.handshake import Hello, Refusal
from dualpath.transport.link import Link, NotStarted
from dualpath.transport.regions import Regions
from dualpath.transport.routes import Routes
from dualpath.transport.sockets import Marks
from dualpath.transport.stream import ByteStream, PlainStream
from dualpath.transport.tls import Tls
from dualpath.wire.codec import MAX_MESSAGE_BYTES
from dualpath.wire.types import Address

log = get_logger(__name__)

_MAX_IMM = (1 << 64) - 1


class TcpEndpoint(Endpoint):
    """An endpoint over TCP; its incarnation is drawn when it is made.

    It listens at `host`, and peers are told to dial `announce` (default: the same), which may be a name.
    `secret` is the cluster's. Two endpoints with a `fingerprint` each must have the same; an empty one serves
    any model. A dialed Address with an empty incarnation means whichever life of the peer listens there.
    What is silent for `transfer_deadline_s` is cut; a link is made, or given up, within it as well.
    With `tls` all its links are encrypted, and peers without it are refused. Of two lives of one endpoint the
    earlier is cut, and refused as long as the later is linked. `marks` are those of its packets.

    An operation whose link turns out to be lost before a byte of it has left is tried again on a
    new link; one that had begun is not, since its immediate data or message might count twice.
    """

    def __init__(
        self,
        endpoint_id: str,
        *,
        host: str,
        nic: Nic,
        secret: bytes,
        fingerprint: str = "",
        transfer_deadline_s: float = 5.0,
        port: int = 0,
        announce: str | None = None,
        tls: Tls | None = None,
        marks: Marks | None = None,
    ) -> None:
        if not endpoint_id:
            raise ValueError("an endpoint needs an id")
        if not secret:
            raise ValueError("an endpoint needs the cluster's secret; an empty one guards nothing")
        self.endpoint_id = endpoint_id
        self.incarnation = handshake.incarnation()
        self.nic = nic
        self._host = host
        self._announced_host = announce or host
        self._port = port
        self._secret = secret
        self._fingerprint = fingerprint
        self._tls = tls
        self._marks = marks or Marks()
        self._deadline_s = transfer_deadline_s
        self._regions = Regions()
        self._routes = Routes()
        self._dials = Dials(self._dial, self._spawn, transfer_deadline_s)
        self._accepts = Accepts(endpoint_id, self._welcome, self._spawn)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listener: socket.socket | None = None
        self._address: Address | None = None
        self._on_message: MessageHandler | None = None
        self._closing = False
        self._greeter: Greeter
        self._meeting_name = ""

    # ── life ───────────────────────────────────────────────────────────────────────────────────────
    @property
    def address(self) -> Address:
        if self._address is None:
            raise RuntimeError(f"endpoint {self.endpoint_id} has no address before start()")
        return self._address

    @property
    def sends_files(self) -> bool:
        return self._tls is None

    async def start(self, on_message: MessageHandler) -> None:
        """Raises OSError where the port cannot be had."""
        if self._listener is not None:
            raise RuntimeError(f"endpoint {self.endpoint_id} was started twice")
        self._listener = await sockets.listen(self._host, self._port)
        port = self._listener.getsockname()[1]
        self._address = Address(self.endpoint_id, self.incarnation, self._announced_host, port)
        self._greeter = Greeter(
            self._address,
            self._secret,
            self._fingerprint,
            self._deadline_s,
            self._tls,
            self._meeting_name,
        )
        self._on_message = on_message
        self._spawn(self._accepts.run(self._listener))

    async def close(self) -> None:
        self._closing = True
        for link in list(self._routes.links):
            link.fail("this process closed it", graceful=True)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        if self._listener is not None:
            self._listener.close()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that `close` ends; what it raises unforeseen is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, LinkError | PeerRefused):
            log.error("transport_task_failed", endpoint=self.endpoint_id, exc_info=error)

    # ── regions ────────────────────────────────────────────────────────────────────────────────────
    def register(self, region: Region) -> int:
        return self._regions.register(region)

    async def revoke(self, key: int) -> None:
        """Takes effect at once: sockets are read by this event loop alone, so pointing the rest of a
        frame that is arriving elsewhere leaves nobody who writes to the region."""
        self._regions.revoke(key)
        for link in self._routes.links:
            link.drop(key)

    # ── operations ─────────────────────────────────────────────────────────────────────────────────
    async def write(
        self,
        peer: Address,
        key: int,
        offset: int,
        source: Source,
        *,
        lane: Lane = Lane.LOW,
        imm: int = 0,
    ) -> None:
        if not 0 <= imm <= _MAX_IMM:
            raise ValueError(f"immediate data has 64 bits; {imm} does not fit")
        if offset < 0:
            raise ValueError(f"a write cannot begin at {offset}")
        if source and isinstance(source[0], FilePart) and not self.sends_files:
            raise ValueError("this endpoint sends memory, not files")
        views: list[Piece] = [
            piece if isinstance(piece, FilePart) else memoryview(piece).cast("B")
            for piece in source
        ]

        def write(link: Link) -> Awaitable[None]:
            return link.write(key, offset, views, imm)

        await self._on_link(peer, lane, write)

    async def send(self, peer: Address, message: bytes, *, lane: Lane = Lane.LOW) -> None:
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(message)}; "
                "send it in parts, or write it into a region"
            )
        await self._on_link(peer, lane, lambda link: link.send(message))

    async def _on_link(
        self, peer: Address, lane: Lane, operate: Callable[[Link], Awaitable[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._deadline_s
        while True:
            link = self._routes.find(peer, lane)
            if link is None or not link.fresh:
                link = await self._link(peer, lane, give_up_at)
            try:
                return await operate(link)
            except NotStarted:
                if self._closing or loop.time() >= give_up_at:
                    raise

    async def _link(self, peer: Address, lane: Lane, give_up_at: float) -> Link:
        """A link that is known to be alive. Raises LinkError, PeerRefused."""
        try:
            async with asyncio.timeout_at(give_up_at):
                while True:
                    link = self._routes.find(peer, lane)
                    if link is None:
                        self._check_dialable(peer)
                        link = await self._dials.link(peer, lane)
                    if await link.ready():
                        return link
        except TimeoutError as error:
            raise LinkError(
                f"no link to {peer.endpoint_id} at {peer.host}:{peer.port} within "
                f"{self._deadline_s:g} s; is it running, and reachable from here?"
            ) from error

    def _check_dialable(self, peer: Address) -> None:
        if self._closing or self._address is None:
            raise LinkError(f"endpoint {self.endpoint_id} is not running")
        if peer.endpoint_id == self.endpoint_id:
            raise PeerRefused(f"endpoint {self.endpoint_id} cannot dial itself")

    # ── dialing ────────────────────────────────────────────────────────────────────────────────────
    async def _dial(self, peer: Address, lane: Lane) -> Link:
        where = f"{peer.endpoint_id} at {peer.host}:{peer.port}"
        try:
            async with asyncio.timeout(self._deadline_s):
                while (link := self._routes.find(peer, lane)) is None:
                    try:
                        return await self._dial_once(peer, lane)
                    except Refusal as refusal:
                        if refusal.code != handshake.CROSSING:
                            raise
                    # The peer made or makes a link to this side at the same time.
                    if self._routes.find(peer, lane) is None:
                        await self._routes.arrival(self._deadline_s / 20)
                return link
        except (Refusal, MalformedFrame) as error:
            raise PeerRefused(f"{where}: {error}") from error
        except TimeoutError as error:
            raise LinkError(
                f"{where} did not answer within {self._deadline_s:g} s; is it stopped?"
            ) from error
        except OSError as error:
            raise LinkError(f"{where} cannot be reached: {error.strerror or error}") from error

    async def _dial_once(self, peer: Address, lane: Lane) -> Link:
        sock = await sockets.connect(peer.host, peer.port, lane, self._marks)
        try:
            stream = await self._greeter.secure(sock, peer.host)
            present = self._routes.find(peer, lane)
            if present is not None:
                # Meanwhile the peer has dialed. Naming that link as known would tell it that it is given up.
                sock.close()
                return present
            reader = FrameReader()
            known = self._routes.last_id(peer, lane)
            theirs, link_id = await self._greeter.dial(stream, reader, peer, lane, known)
            return self._adopt(stream, reader, theirs, link_id=link_id, dialed_here=True)
        except BaseException:
            sock.close()
            raise

    # ── listening ──────────────────────────────────────────────────────────────────────────────────
    async def _welcome(self, sock: PlainStream, where: str) -> None:
        """Lead one accepted connection to a link, or to its end."""
        stream: ByteStream = sock
        try:
            sockets.tune(sock)
            async with asyncio.timeout(self._deadline_s):
                stream = await self._greeter.secure_accepted(sock)
                await self._listen_once(stream, partial(sockets.mark, sock, marks=self._marks))
        except Refusal as refusal:
            # That two dial each other at once is no fault.
            level = logging.INFO if refusal.code == handshake.CROSSING else logging.WARNING
            log.log(level, "peer_refused", peer=where, code=refusal.code, reason=str(refusal))
            await greeting.refuse(stream, refusal, self._deadline_s)
        except (MalformedFrame, OSError, TimeoutError) as error:
            sock.close()
            log.warning("handshake_failed", peer=where, reason=str(error) or "it took too long")
        except BaseException:
            sock.close()
            raise

    async def _listen_once(self, stream: ByteStream, on_lane: Callable[[Lane], None]) -> None:
        reader = FrameReader()
        theirs, welcome = await self._greeter.answer(stream, reader, on_lane)
        # From here to the welcome nothing waits: no link is seen before its peer is told of it.
        self._admit(theirs)
        link_id = theirs.nonce.hex()
        link = self._adopt(stream, reader, theirs, link_id=link_id, dialed_here=False)
        link.control(welcome)

    def _admit(self, theirs: Hello) -> None:
        """Both sides may dial at once; exactly one of the two links must come of it. Raises Refusal.

        A peer that dialed the present link itself, or knows of it, has given it up. One that does not
        know of it dialed before it learned; it is to use that one. While both are still dialing, the
        smaller id goes on.
        """
        lane = Lane(theirs.lane)
        current = self._routes.find(theirs.sender, lane)
        if current is not None:
            crossing = current.dialed_here and theirs.known_link != current.link_id
        else:
            peer_id = theirs.sender.endpoint_id
            crossing = self._dials.dialing(peer_id, lane) and self.endpoint_id < peer_id
        if crossing:
            raise Refusal(handshake.CROSSING, "a link is being made from the other side")

    def _adopt(
        self,
        stream: ByteStream,
        reader: FrameReader,
        peer: Hello,
        *,
        link_id: str,
        dialed_here: bool,
    ) -> Link:
        """Make a link of a connection whose handshake is done, and serve it. Raises Refusal where the
        peer's later life is linked."""
        if self._closing or self._on_message is None:
            raise ConnectionAbortedError(f"endpoint {self.endpoint_id} is being closed")
        for other in self._routes.other_lives(peer.sender):
            handshake.check_life(other.peer.incarnation, peer.sender)
        reader.authenticated()
        link = self._new_link(
            stream,
            reader,
            peer.meeting,
            link_id=link_id,
            peer=peer.sender,
            lane=Lane(peer.lane),
            dialed_here=dialed_here,
            nic=self.nic,
            regions=self._regions,
            on_message=self._on_message,
            deadline_s=self._deadline_s,
            peer_deadline_s=peer.deadline_s,
        )
        self._routes.add(link)
        self._spawn(self._serve(link))
        return link

    def _new_link(
        self, stream: ByteStream, reader: FrameReader, peer_meeting: str, **options: Any
    ) -> Link:
        """`peer_meeting` is where the peer takes memory, if anywhere (see `samehost`)."""
        return Link(stream, reader, **options)

    async def _serve(self, link: Link) -> None:
        log.info("link_up", peer=str(link), lane=link.lane.name, dialed=link.dialed_here)
        try:
            await link.run()
        finally:
            self._routes.remove(link)
            log.info("link_down", peer=str(link), lane=link.lane.name, reason=link.lost)
