from __future__ import annotations

import socket

import pytest

from dualpath.transport import sockets


async def test_an_accepted_connection_has_the_congestion_control_of_links_from_its_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "CONGESTION_CONTROL", b"reno")  # Which no machine has by default.
    with await sockets.listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            listener.setblocking(True)
            accepted, _ = listener.accept()
        with accepted:
            name = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert name.rstrip(b"\0") == b"reno"
