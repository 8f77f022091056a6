"""TLS 1.3 between endpoints: both sides show a certificate of the cluster's authority.

It lies below the link's own handshake (`handshake`), whose proofs are then bound to this one connection.
Nothing is negotiated: a side that has TLS accepts nothing else, and one that has not accepts no TLS.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from dualpath.memory.file_part import Piece
from dualpath.settings import Settings
from dualpath.transport.handshake import Refusal
from dualpath.transport.stream import readable, writable

ALPN = "dualpath-link"
"""What is spoken inside: a certificate that serves for something else too is not mistaken for a link's."""
HANDSHAKE_BYTE = b"\x16"
"""TLS begins with it; no frame of a link does."""

_RECORD_BYTES = 16 * 1024
"""Plaintext of a full record. Pieces that are shorter are put together first."""
_SEAL_BYTES = 256 * 1024
"""Plaintext that is encrypted at a time; a stream holds hardly more on its way out."""
_OPEN_BYTES = 256 * 1024
_MAX_UNASKED_BYTES = 64 * 1024
"""What TLS itself may have to answer to a peer that does not read the answers."""
_opening = memoryview(bytearray(_OPEN_BYTES))
"""Ciphertext between a socket and TLS. It is empty again before anybody else can run, so all streams share it."""


class Tls:
    """An endpoint's certificate, and the authority that signs those of its peers.

    Raises ValueError, in a sentence, for files that cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority)
        # A ticket would be a way around the certificate, and the client's first bytes to read.
        self._server.num_tickets = 0

    @classmethod
    def of(cls, settings: Settings) -> Tls | None:
        """None where the settings want none. Raises ValueError."""
        if settings.tls_certificate is None or settings.tls_key is None or settings.tls_ca is None:
            return None
        return cls(settings.tls_certificate, settings.tls_key, settings.tls_ca)

    async def accept(self, sock: socket.socket) -> TlsStream:
        """The stream over an accepted connection, which stays the caller's to close. Raises OSError."""
        stream = TlsStream(sock, self._server)
        try:
            await _shake_hands(stream)
        except ssl.SSLError as error:
            raise ConnectionAbortedError(explain(error)) from error
        return stream

    async def connect(self, sock: socket.socket, host: str) -> TlsStream:
        """As `accept`. `host` is the name or address that was dialed; the peer's certificate must have it.

        Raises Refusal, OSError.
        """
        stream = TlsStream(sock, self._client, server_hostname=host)
        try:
            await _shake_hands(stream)
        except ssl.SSLError as error:
            raise Refusal("tls", explain(error)) from error
        return stream


class TlsStream:
    """An encrypted ByteStream; it works in memory, within the caller's turn on the event loop."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None
    ) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._sealed = memoryview(b"")

    @property
    def binding(self) -> bytes:
        """The same at both ends of this connection, and different for any other: the client's Finished,
        a MAC over the whole handshake. (RFC 9266 gives TLS 1.3 an exporter instead, which `ssl` lacks.)"""
        binding = self._tls.get_channel_binding("tls-unique")
        if not binding:
            raise ConnectionAbortedError("TLS gives nothing to bind the link to")
        return binding

    @property
    def protocol(self) -> str | None:
        """What both sides say they speak inside."""
        return self._tls.selected_alpn_protocol()

    def shake_hands(self) -> bool:
        """Go on with the handshake; True once it is over, False where the peer must say more first.

        Raises ssl.SSLError, OSError.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
            else:
                return True
            try:
                self._receive()
            except BlockingIOError:
                return False

    def fileno(self) -> int:
        return self._sock.fileno()

    def sendmsg(self, buffers: Iterable[memoryview], /) -> int:
        if not self.flush():
            raise BlockingIOError
        taken = self._seal(buffers)
        self.flush()
        return taken

    def send_pieces(self, pieces: Sequence[Piece], /) -> int:
        """Of memory only: what is encrypted must be read first."""
        return self.sendmsg(cast("Sequence[memoryview]", pieces))

    def recvmsg_into(self, buffers: Iterable[memoryview], /) -> tuple[int, list[object], int, None]:
        return self._open(buffers), [], 0, None

    def recv(self, bufsize: int, flags: int, /) -> bytes:
        return self._sock.recv(bufsize, flags)

    def flush(self) -> bool:
        while self._sealed or self._outgoing.pending:
            if not self._sealed:
                self._sealed = memoryview(self._outgoing.read())
            try:
                sent = self._sock.send(self._sealed)
            except (BlockingIOError, InterruptedError):
                return False
            self._sealed = self._sealed[sent:]
        return True

    def unread(self) -> bool:
        return bool(self._incoming.pending or self._tls.pending())

    def setsockopt(self, level: int, optname: int, value: bytes, /) -> None:
        self._sock.setsockopt(level, optname, value)

    def close(self) -> None:
        self._sock.close()

    def _seal(self, buffers: Iterable[memoryview]) -> int:
        room = _SEAL_BYTES
        short = bytearray()
        for buffer in buffers:
            part = buffer[:room]
            room -= len(part)
            if len(part) < _RECORD_BYTES:
                short += part
            if len(short) >= _RECORD_BYTES or (short and len(part) >= _RECORD_BYTES):
                self._write(memoryview(bytes(short)))
                short.clear()
            if len(part) >= _RECORD_BYTES:
                self._write(part)
            if not room:
                break
        if short:
            self._write(memoryview(bytes(short)))
        return _SEAL_BYTES - room

    def _write(self, plain: memoryview) -> None:
        while plain:
            plain = plain[self._tls.write(plain) :]

    def _open(self, buffers: Iterable[memoryview]) -> int:
        total = 0
        for buffer in buffers:
            while buffer:
                try:
                    count = cast("int", self._tls.read(len(buffer), buffer))
                except ssl.SSLWantReadError:
                    if total:
                        return total
                    self._receive()
                    continue
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    return total
                if not count:
                    return total
                total += count
                buffer = buffer[count:]
        return total

    def _receive(self) -> None:
        """Give TLS what the kernel has. Raises BlockingIOError, OSError."""
        if self._outgoing.pending > _MAX_UNASKED_BYTES:
            raise ConnectionAbortedError("the peer asks TLS for answers and reads none")
        count = self._sock.recv_into(_opening)
        if count:
            self._incoming.write(_opening[:count])
        else:
            self._incoming.write_eof()


async def _shake_hands(stream: TlsStream) -> None:
    try:
        while not stream.shake_hands():
            await (readable(stream) if stream.flush() else writable(stream))
    except ssl.SSLError:
        # The alert, which says why.
        stream.flush()
        raise
    while not stream.flush():
        await writable(stream)
    if stream.protocol != ALPN:
        raise ssl.SSLError("the peer speaks TLS, but not for a link of a cluster")


def explain(error: ssl.SSLError) -> str:
    """A sentence for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the peer's certificate is not accepted: {error.verify_message}; it must be signed by the "
            "authority in tls_ca, be valid now, and have the name or address that is dialed"
        )
    if isinstance(error, ssl.SSLEOFError):
        return "the peer ended the TLS handshake; its log says why"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason:
        return f"the peer does not accept this side's certificate ({reason}); do both have the same tls_ca?"
    return f"TLS with the peer failed ({reason}); does it use TLS, version 1.3?"


def _context(
    protocol: ssl._SSLMethod, certificate: Path, key: Path, authority: Path
) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([ALPN])
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise ValueError(f"tls_ca {authority} cannot be used: {_why(error)}") from error
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tls_certificate {certificate} and tls_key {key} cannot be used: {_why(error)}"
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by its owner only")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no PEM, or not of the same pair ({error.reason or error})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
