"""Where a writer hands the descriptors of its memory to a target: a Unix socket."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

from dualpath.transport.samehost.segments import MAX_SEGMENTS
from dualpath.transport.stream import readable

_MAX_BYTES = 512
_MAC_BYTES = 32
_TAKEN = b"\1"


def listen() -> tuple[str, socket.socket]:
    """A name that is hard to guess, and the socket that listens there. Raises OSError."""
    name = f"dualpath-{secrets.token_hex(16)}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(f"\0{name}")
        sock.listen(128)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return name, sock


def mac(secret: bytes, name: str, link_id: str) -> bytes:
    """What who knows the secret says, for this link and this listener only."""
    parts = (name.encode(), link_id.encode())
    return hmac.digest(
        secret, b"dualpath.memory.1" + b"".join(sha256(part).digest() for part in parts), "sha256"
    )


async def offer(secret: bytes, name: str, link_id: str, fds: Sequence[int]) -> bool:
    """Hand them over; False where nobody is there, as on another host, or the target has no use for them."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.setblocking(False)
        sock.connect(f"\0{name}")
        socket.send_fds(sock, [mac(secret, name, link_id) + link_id.encode()], fds)
        await readable(sock)
        return sock.recv(1) == _TAKEN
    except OSError:
        return False
    finally:
        sock.close()


async def take(sock: socket.socket) -> tuple[bytes, str, list[int]]:
    """The mac, the link and the descriptors of an offer; the caller closes them. Raises OSError."""
    await readable(sock)
    said, fds, flags, _ = socket.recv_fds(
        sock, _MAX_BYTES, 1 + MAX_SEGMENTS, socket.MSG_CMSG_CLOEXEC
    )
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC) or len(said) <= _MAC_BYTES:
        _close(fds)
        raise OSError("what came is no offer of memory")
    return said[:_MAC_BYTES], said[_MAC_BYTES:].decode("ascii", "replace"), fds


def taken(sock: socket.socket) -> None:
    """Tell the writer. Raises OSError."""
    sock.send(_TAKEN)


@contextmanager
def closing(fds: Sequence[int]) -> Iterator[None]:
    try:
        yield
    finally:
        _close(fds)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
