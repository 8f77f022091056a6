"""The handshake over a socket. What is said and checked is in `handshake`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from dualpath.lanes.api import Lane
from dualpath.transport import handshake
from dualpath.transport.frames import Begin, End, FrameReader, Header, Kind
from dualpath.transport.handshake import Hello
from dualpath.wire.codec import encode
from dualpath.wire.types import Address


@dataclass(frozen=True)
class Greeter:
    """One endpoint's part in handshakes, from either side."""

    me: Address
    secret: bytes
    fingerprint: str
    deadline_s: float

    async def dial(
        self, sock: socket.socket, reader: FrameReader, peer: Address, lane: Lane, known_link: str
    ) -> tuple[Hello, str]:
        """The peer's Hello, and the id of the link that both have now.

        Raises handshake.Refusal, MalformedFrame, OSError.
        """
        mine = self._hello(lane, peer, known_link)
        mine_bytes = encode(mine)
        await send_frame(sock, Kind.HELLO, mine_bytes)
        kind, theirs_bytes = await receive_frame(sock, reader)
        if kind is Kind.REFUSE:
            handshake.check_welcome(theirs_bytes, b"")
        theirs = handshake.read_hello(theirs_bytes)
        mac = handshake.proof(self.secret, "dialer", mine_bytes, theirs_bytes)
        await send_frame(sock, Kind.PROOF, encode(handshake.Proof(mac)))
        _, answer = await receive_frame(sock, reader)
        expected = handshake.proof(self.secret, "listener", mine_bytes, theirs_bytes)
        handshake.check_welcome(answer, expected)
        handshake.check_listener(mine, theirs)
        return theirs, mine.nonce.hex()

    async def answer(
        self, sock: socket.socket, reader: FrameReader, on_lane: Callable[[Lane], None]
    ) -> tuple[Hello, bytes]:
        """The dialer's Hello, and the frame that is to be the first on the link, once the caller has
        decided to have it. `on_lane` hears which lane it will be, before more is sent.

        Raises handshake.Refusal, MalformedFrame, OSError.
        """
        _, theirs_bytes = await receive_frame(sock, reader)
        theirs = handshake.read_hello(theirs_bytes)
        lane = Lane(theirs.lane)
        on_lane(lane)
        mine = self._hello(lane, theirs.sender)
        mine_bytes = encode(mine)
        await send_frame(sock, Kind.HELLO, mine_bytes)
        _, proof = await receive_frame(sock, reader)
        expected = handshake.proof(self.secret, "dialer", theirs_bytes, mine_bytes)
        handshake.check_proof(proof, expected)
        handshake.check_identity(mine, theirs, self.me)
        mac = handshake.proof(self.secret, "listener", theirs_bytes, mine_bytes)
        return theirs, frame(Kind.WELCOME, encode(handshake.Welcome(mac)))

    def _hello(self, lane: Lane, target: Address, known_link: str = "") -> Hello:
        return handshake.hello(
            self.me,
            lane,
            target,
            fingerprint=self.fingerprint,
            deadline_s=self.deadline_s,
            known_link=known_link,
        )


def frame(kind: Kind, payload: bytes) -> bytes:
    return Header(kind, length=len(payload)).pack() + payload


async def send_frame(sock: socket.socket, kind: Kind, payload: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, frame(kind, payload))


async def receive_frame(sock: socket.socket, reader: FrameReader) -> tuple[Kind, bytes]:
    """The next frame of the handshake; takes no byte of what follows it.

    Raises ConnectionError where the peer closes, MalformedFrame.
    """
    loop = asyncio.get_running_loop()
    body = bytearray()
    while True:
        count = await loop.sock_recv_into(sock, reader.buffers()[0])
        if not count:
            raise ConnectionResetError("the peer closed the connection during the handshake")
        for event in reader.received(count):
            if isinstance(event, Begin) and event.header.length:
                body = bytearray(event.header.length)
                reader.into([memoryview(body)])
            elif isinstance(event, End):
                return event.header.kind, bytes(body)
