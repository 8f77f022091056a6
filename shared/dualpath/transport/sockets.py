"""Sockets as links want them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dualpath.lanes.api import Lane
from dualpath.settings import Settings
from dualpath.transport.stream import ByteStream, PlainStream

NOTSENT_LOWAT_BYTES = 2 << 20
"""Unsent bytes that the kernel holds per link: enough to keep it busy while the event loop sees to others, little
enough that the arbiter and not the kernel decides what goes next. A lane has links of its own, so no other waits
behind them."""
SEND_BUFFER_BYTES = 1 << 20
"""The kernel takes twice as much. What is under way between two processes of a host should still be in a cache
when it is read: with four times as much a GB costs a fifth more of both processors."""
CONGESTION_CONTROL = b"cubic"
"""Whatever the machine's default is: bbr paces each connection by timers, which costs up to twice the processor's
time, and slows one lane on account of the other. Rates are the NICs' affair here."""
BACKLOG = 128
_SEND_BUFFER_LIMIT = Path("/proc/sys/net/core/wmem_max")


@dataclass(frozen=True)
class Marks:
    """What tells a network with QoS which lane a packet is of, by lane: the DSCP in its header, and the
    kernel's SO_PRIORITY, which queue disciplines of this machine see."""

    dscp: Mapping[Lane, int] = field(default_factory=lambda: {Lane.HIGH: 46, Lane.LOW: 8})
    priority: Mapping[Lane, int] = field(default_factory=lambda: {Lane.HIGH: 6, Lane.LOW: 1})

    @classmethod
    def of(cls, settings: Settings) -> Marks:
        """Without lanes all traffic has the marks of the low one."""
        values = (settings.lane_dscp, settings.lane_priority)
        dscp, priority = (
            {Lane.HIGH: high if settings.lanes else low, Lane.LOW: low} for high, low in values
        )
        return cls(dscp, priority)


async def listen(host: str, port: int) -> socket.socket:
    """A listening, non-blocking socket. Raises OSError with the address in it."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, where = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _pin_congestion_control(sock)
        sock.bind(where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


async def connect(host: str, port: int, lane: Lane, marks: Marks | None = None) -> PlainStream:
    """A connected, tuned, non-blocking socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, kind, protocol, _, where in infos:
        sock = PlainStream(family, kind, protocol)
        try:
            sock.setblocking(False)
            tune(sock)
            mark(sock, lane, marks or Marks())
            await loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


def tune(sock: socket.socket) -> None:
    """No Nagle, keepalive, and a short queue of unsent bytes in the kernel."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _try(sock, socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    _pin_congestion_control(sock)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BYTES),
    ):
        if hasattr(socket, name):
            _try(sock, socket.IPPROTO_TCP, getattr(socket, name), value)


def send_buffer_limit() -> int | None:
    """What the kernel lets a process ask for, in bytes; of more it gives as much, and says nothing. None where
    it does not tell."""
    try:
        return int(_SEND_BUFFER_LIMIT.read_text())
    except (OSError, ValueError):
        return None


def _pin_congestion_control(sock: socket.socket) -> None:
    """Of one that is to connect or listen: a connection that has begun with bbr is paced by timers for good."""
    if hasattr(socket, "TCP_CONGESTION"):
        _try(sock, socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


def mark(sock: socket.socket, lane: Lane, marks: Marks) -> None:
    """Mark what is sent from here on. The DSCP first: setting it resets the priority."""
    tos = marks.dscp[lane] << 2
    if sock.family == socket.AF_INET6:
        _try(sock, socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    else:
        _try(sock, socket.IPPROTO_IP, socket.IP_TOS, tos)
    if hasattr(socket, "SO_PRIORITY"):
        _try(sock, socket.SOL_SOCKET, socket.SO_PRIORITY, marks.priority[lane])


def _try(sock: socket.socket, level: int, option: int, value: int | bytes) -> None:
    # Containers may forbid marks; links work without.
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)


def abort(stream: ByteStream) -> None:
    """Close at once; what the kernel still holds is not sent any more."""
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()
