"""Peers that say damaged things, at every stage of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter
from typing import Any

import msgspec
from tests.fuzz.streams import Streams
from tests.support.transport import SECRET, RawPeer

from dualpath.lanes import Lane
from dualpath.transport import greeting, handshake, sockets
from dualpath.transport.frames import HEADER_BYTES, Header, Kind, MalformedFrame
from dualpath.transport.handshake import Refusal
from dualpath.transport.stream import ByteStream, PlainStream, receive_into, send_all
from dualpath.transport.tls import Tls
from dualpath.wire.codec import encode
from dualpath.wire.types import Address

CUT_WITHIN_S = 30.0
"""A peer that has fallen silent; the target's own deadline is 5 s."""
ANSWER_S = 0.2


class Attacker:
    """One of them, which makes one connection after another. Raises AssertionError, where one is never cut."""

    def __init__(
        self,
        name: str,
        target: Address,
        streams: Streams,
        tls: Tls | None,
        counts: Counter[str],
    ) -> None:
        self._name = name
        self._target = target
        self._streams = streams
        self._draw = streams.draw
        self._tls = tls
        self._counts = counts
        self._stream: ByteStream | None = None

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            stage = self._draw.choice(("strange", "hello", "proof", "linked", "linked", "linked"))
            self._counts[f"connections: {stage}"] += 1
            try:
                await self._end(await getattr(self, f"_{stage}")())
            except (OSError, Refusal, MalformedFrame, TimeoutError):
                self._counts["refused or cut before it was done"] += 1
            finally:
                if self._stream is not None:
                    self._stream.close()
                    self._stream = None

    async def _strange(self) -> ByteStream:
        """Nothing of what is said is right. Where links are encrypted, it is not."""
        sock = await self._connect()
        kind = self._draw.choice(("greeting", "data", "noise", "nothing", "TLS"))
        if kind == "noise":
            data = self._draw.randbytes(self._draw.randrange(5000))
        elif kind == "TLS":
            data = b"\x16\x03\x01" + self._draw.randbytes(300)
        else:
            parts = {"greeting": self._streams.greeting, "data": self._streams.data}
            data = parts[kind]() if kind in parts else b""
        return await self._say(sock, self._streams.damaged(data) if data else b"")

    async def _hello(self) -> ByteStream:
        """A HELLO that is damaged, or says something else than it should."""
        stream = await self._secure(await self._connect())
        hello = self._hello_frame()
        return await self._say(stream, self._streams.damaged(hello))

    async def _proof(self) -> ByteStream:
        """A right HELLO, and a PROOF that is damaged, or of another secret."""
        stream = await self._secure(await self._connect())
        peer = RawPeer(stream)
        hello = self._hello_frame()
        await self._say(stream, hello)
        async with asyncio.timeout(ANSWER_S):
            theirs = await greeting.receive_answer(stream, peer.reader, Kind.HELLO)
        secret = self._draw.choice((SECRET, b"another"))
        said = hello[HEADER_BYTES:]
        proofs = handshake.Proofs(secret, said, theirs, greeting.binding(stream))
        proof = greeting.frame(Kind.PROOF, encode(handshake.Proof(proofs.dialer)))
        return await self._say(stream, self._streams.damaged(proof))

    async def _linked(self) -> ByteStream:
        """Who it is, is right; what follows is damaged."""
        changes: dict[str, Any] = {}
        if self._draw.random() < 0.1:
            changes = self._changes()
        async with asyncio.timeout(CUT_WITHIN_S):
            peer = await RawPeer.dial(
                self._target, endpoint_id=self._name, tls=self._tls, **changes
            )
        self._stream = peer.stream
        if self._draw.random() < 0.3:
            await self._say(peer.stream, Header(Kind.MESSAGE, 0, 4, 1).pack() + b"push")
        for _ in range(self._draw.randrange(1, 4)):
            data = self._streams.damaged(self._streams.data())
            if self._draw.random() < 0.05:
                data = b"".join(Header(Kind.MESSAGE, 0, 1, op).pack() + b"x" for op in range(300))
            await self._say(peer.stream, data)
        return peer.stream

    def _hello_frame(self) -> bytes:
        me = Address(self._name, "1", "127.0.0.1", 9)
        hello = handshake.hello(me, Lane.LOW, self._target, deadline_s=60.0)
        if self._draw.random() < 0.3:
            hello = msgspec.structs.replace(hello, **self._changes())
        return greeting.frame(Kind.HELLO, encode(hello))

    def _changes(self) -> dict[str, Any]:
        """One lie in a HELLO."""
        lies: list[dict[str, Any]] = [
            {"protocol": 99},
            {"nonce": b"short"},
            {"lane": 9},
            {"deadline_s": 0.0},
            {"deadline_s": float("nan")},
            {"target_id": "another"},
            {"target_incarnation": "0" * 24},
            {"fingerprint": "another"},
            {"known_link": "f" * 3000},
            {"sender": Address("honest", "0", "127.0.0.1", 9)},
            {"sender": Address("", "", "", 0)},
            {"sender": Address("\x1b[2J", "1", "x", 9)},
        ]
        return self._draw.choice(lies)

    async def _connect(self) -> PlainStream:
        async with asyncio.timeout(CUT_WITHIN_S):
            sock = await sockets.connect(self._target.host, self._target.port, Lane.LOW)
        self._stream = sock
        return sock

    async def _secure(self, sock: PlainStream) -> ByteStream:
        if self._tls is None:
            return sock
        async with asyncio.timeout(CUT_WITHIN_S):
            return await self._tls.connect(sock, self._target.host)

    async def _say(self, stream: ByteStream, data: bytes) -> ByteStream:
        """In one piece or in two. Raises OSError, TimeoutError."""
        cut = self._draw.randrange(len(data) + 1) if self._draw.random() < 0.3 else len(data)
        self._counts["streams"] += 1
        self._counts["bytes"] += len(data)
        async with asyncio.timeout(CUT_WITHIN_S):
            await send_all(stream, data[:cut])
            await asyncio.sleep(0)
            await send_all(stream, data[cut:])
        return stream

    async def _end(self, stream: ByteStream) -> None:
        ending = self._draw.choices(("close", "abort", "listen", "silence"), (40, 20, 39, 1))[0]
        self._counts[f"ended by: {ending}"] += 1
        if ending == "abort":
            linger = struct.pack("ii", 1, 0)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif ending == "listen":
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(self._draw.random() * ANSWER_S / 4):
                    await self._hear_all(stream)
        elif ending == "silence":
            try:
                async with asyncio.timeout(CUT_WITHIN_S):
                    await self._hear_all(stream)
            except TimeoutError:
                raise AssertionError("a peer that fell silent was never cut") from None
            except OSError:
                pass

    async def _hear_all(self, stream: ByteStream) -> None:
        drain = memoryview(bytearray(1 << 16))
        while await receive_into(stream, drain):
            pass
