"""The handshake over a connection. What is said and checked is in `handshake`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from dualpath.lanes.api import Lane
from dualpath.telemetry.logs import get_logger
from dualpath.transport import handshake
from dualpath.transport.frames import Begin, End, FrameReader, Header, Kind, MalformedFrame
from dualpath.transport.handshake import Hello, Refusal
from dualpath.transport.stream import ByteStream, PlainStream, readable, receive_into, send_all
from dualpath.transport.tls import HANDSHAKE_BYTE, Tls, TlsStream
from dualpath.wire.codec import encode
from dualpath.wire.types import Address

log = get_logger(__name__)


@dataclass(frozen=True)
class Greeter:
    """One endpoint's part in handshakes, from either side. `tls` None: links are not encrypted."""

    me: Address
    secret: bytes
    fingerprint: str
    deadline_s: float
    tls: Tls | None = None
    meeting: str = ""
    """Where peers of this host may hand over their memory."""

    async def secure(self, sock: PlainStream, host: str) -> ByteStream:
        """The stream over a connection that was dialed at `host`. `sock` stays the caller's to close.

        Raises handshake.Refusal, OSError.
        """
        return sock if self.tls is None else await self.tls.connect(sock, host)

    async def secure_accepted(self, sock: PlainStream) -> ByteStream:
        """As `secure`, over one that was accepted. A Refusal is to be told to the peer over `sock`."""
        await readable(sock)
        first = sock.recv(1, socket.MSG_PEEK)
        if (first == HANDSHAKE_BYTE and self.tls is None) or (
            first == handshake.FIRST_BYTE and self.tls is not None
        ):
            # What it said is read, as a connection that is closed before loses the answer, too.
            sock.recv(handshake.MAX_FIRST_BYTES)
            mine, theirs = ("no TLS", "TLS") if self.tls is None else ("TLS", "no TLS")
            raise Refusal(
                "tls",
                f"{self.me.endpoint_id} uses {mine}, and who dials it {theirs}; set tls_certificate, "
                "tls_key and tls_ca on both sides, or on neither",
            )
        return sock if self.tls is None else await self.tls.accept(sock)

    async def dial(
        self, stream: ByteStream, reader: FrameReader, peer: Address, lane: Lane, known_link: str
    ) -> tuple[Hello, str]:
        """The peer's Hello, and the id of the link that both have now.

        Raises handshake.Refusal, MalformedFrame, OSError.
        """
        mine = self._hello(lane, peer, known_link)
        mine_bytes = encode(mine)
        await send_frame(stream, Kind.HELLO, mine_bytes)
        theirs_bytes = await receive_answer(stream, reader, Kind.HELLO)
        theirs = handshake.read_hello(theirs_bytes)
        proofs = handshake.Proofs(self.secret, mine_bytes, theirs_bytes, binding(stream))
        await send_frame(stream, Kind.PROOF, encode(handshake.Proof(proofs.dialer)))
        welcome = await receive_answer(stream, reader, Kind.WELCOME)
        handshake.check_welcome(welcome, proofs.listener)
        handshake.check_listener(mine, theirs)
        return theirs, mine.nonce.hex()

    async def answer(
        self, stream: ByteStream, reader: FrameReader, on_lane: Callable[[Lane], None]
    ) -> tuple[Hello, bytes]:
        """The dialer's Hello, and the frame that is to be the first on the link, once the caller has
        decided to have it. `on_lane` hears which lane it will be, before more is sent.

        Raises handshake.Refusal, MalformedFrame, OSError.
        """
        theirs_bytes = await receive_frame(stream, reader, Kind.HELLO)
        theirs = handshake.read_hello(theirs_bytes)
        lane = Lane(theirs.lane)
        on_lane(lane)
        mine = self._hello(lane, theirs.sender)
        mine_bytes = encode(mine)
        await send_frame(stream, Kind.HELLO, mine_bytes)
        proof = await receive_frame(stream, reader, Kind.PROOF)
        proofs = handshake.Proofs(self.secret, theirs_bytes, mine_bytes, binding(stream))
        handshake.check_proof(proof, proofs.dialer)
        handshake.check_identity(mine, theirs, self.me)
        return theirs, frame(Kind.WELCOME, encode(handshake.Welcome(proofs.listener)))

    def _hello(self, lane: Lane, target: Address, known_link: str = "") -> Hello:
        return handshake.hello(
            self.me,
            lane,
            target,
            fingerprint=self.fingerprint,
            deadline_s=self.deadline_s,
            known_link=known_link,
            meeting=self.meeting,
        )


def frame(kind: Kind, payload: bytes) -> bytes:
    return Header(kind, length=len(payload)).pack() + payload


async def send_frame(stream: ByteStream, kind: Kind, payload: bytes) -> None:
    await send_all(stream, frame(kind, payload))


async def refuse(stream: ByteStream, refusal: Refusal, deadline_s: float) -> None:
    """Tell the dialer why there is no link, and close the connection."""
    try:
        async with asyncio.timeout(deadline_s):
            await send_frame(stream, Kind.REFUSE, handshake.refuse(refusal))
    except (OSError, TimeoutError) as error:
        log.info("refusal_not_sent", reason=str(error))
    finally:
        stream.close()


async def receive_frame(stream: ByteStream, reader: FrameReader, kind: Kind) -> bytes:
    """The next frame of the handshake, which must be of `kind`; takes no byte of what follows it.

    Raises ConnectionError where the peer closes, MalformedFrame.
    """
    return (await _receive(stream, reader, kind))[1]


async def receive_answer(stream: ByteStream, reader: FrameReader, kind: Kind) -> bytes:
    """As `receive_frame`, where the peer may also refuse. Raises its handshake.Refusal."""
    came, body = await _receive(stream, reader, kind, Kind.REFUSE)
    if came is Kind.REFUSE:
        raise handshake.read_refusal(body)
    return body


async def _receive(stream: ByteStream, reader: FrameReader, *kinds: Kind) -> tuple[Kind, bytes]:
    body = bytearray()
    while True:
        count = await receive_into(stream, reader.buffers()[0])
        if not count:
            raise ConnectionResetError("the peer closed the connection during the handshake")
        for event in reader.received(count):
            header = event.header
            if isinstance(event, Begin) and header.kind not in kinds:
                wanted = " or ".join(kind.name for kind in kinds)
                raise MalformedFrame(f"a {header.kind.name} frame came in place of {wanted}")
            if isinstance(event, Begin) and header.length:
                body = bytearray(header.length)
                reader.into([memoryview(body)])
            elif isinstance(event, End):
                return header.kind, bytes(body)


def binding(stream: ByteStream) -> bytes:
    """What the proofs on `stream` are bound to."""
    return stream.binding if isinstance(stream, TlsStream) else b""
