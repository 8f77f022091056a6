"""Each lane's connections carry its marks, at both ends."""

from __future__ import annotations

import socket

import pytest
from tests.support.transport import Make
from tests.support.wait import until

from dualpath.lanes import Lane
from dualpath.settings import Settings
from dualpath.transport.sockets import Marks
from dualpath.transport.stream import PlainStream
from dualpath.transport.tcp import TcpEndpoint

WAYS = ["tcp"]


def marks_of(endpoint: TcpEndpoint) -> dict[Lane, tuple[int, int]]:
    """(TOS byte, SO_PRIORITY) of the endpoint's links."""
    found = {}
    for link in endpoint._routes.links:
        sock = link._sock
        assert isinstance(sock, PlainStream)
        found[link.lane] = (
            sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS),
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY),
        )
    return found


@pytest.mark.parametrize(
    ("settings", "high", "low"),
    [
        (Settings(), (0xB8, 6), (0x20, 1)),
        (Settings(lane_dscp=(34, 0), lane_priority=(5, 2)), (34 << 2, 5), (0, 2)),
        (Settings(lanes=False), (0x20, 1), (0x20, 1)),
    ],
)
async def test_both_ends_of_a_link_are_marked_as_the_settings_say(
    make: Make, settings: Settings, high: tuple[int, int], low: tuple[int, int]
) -> None:
    marks = Marks.of(settings)
    left, right = await make("left", marks=marks), await make("right", marks=marks)
    for lane in Lane:
        await left.send(right.address, b"m", lane=lane)
    await until(lambda: len(right._routes.links) == 2)
    assert marks_of(left) == marks_of(right) == {Lane.HIGH: high, Lane.LOW: low}
