"""What the supervisor leaves behind of signals."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpath.cluster.output import Console
from dualpath.cluster.scaling import SIGNAL
from dualpath.cluster.supervisor import Supervisor
from dualpath.settings import load_settings


@pytest.fixture
def handlers() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


@pytest.mark.usefixtures("handlers")
def test_a_command_that_comes_too_late_does_not_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(model="synthetic", max_context=4096, home=tmp_path, port=0)
    supervisor = Supervisor(settings, Console([], stream=io.StringIO()))

    async def nothing() -> int:
        return 0

    monkeypatch.setattr(supervisor, "_run", nothing)
    assert asyncio.run(supervisor.run()) == 0
    assert signal.getsignal(SIGNAL) is signal.SIG_IGN
    os.kill(os.getpid(), SIGNAL)
