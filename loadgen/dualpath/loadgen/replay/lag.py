"""How late the client itself is."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterable

from dualpath.loadgen.replay.records import ClientLag, TurnRecord
from dualpath.loadgen.summary import Summary

_EVERY_S = 0.01
_MAX_SAMPLES = 1 << 20
"""Three hours."""


class LagMeter:
    """Samples by how much the event loop wakes up late, while `run` runs."""

    def __init__(self) -> None:
        self._samples_s: list[float] = []
        self._began_s = time.monotonic()
        self._cpu_s = _cpu_s()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            if len(self._samples_s) < _MAX_SAMPLES:
                self._samples_s.append(max(time.monotonic() - due_s, 0.0))

    def recent_s(self) -> float:
        """The worst of about the last second."""
        return max(self._samples_s[-100:], default=0.0)

    def found(self, turns: Iterable[TurnRecord]) -> ClientLag:
        """Turns that were sent again count until their first sending."""
        elapsed_s = time.monotonic() - self._began_s
        return ClientLag(
            Summary.of(self._samples_s),
            Summary.of(turn.sent_s - turn.due_s for turn in turns if turn.sent_s),
            (_cpu_s() - self._cpu_s) / elapsed_s if elapsed_s else 0.0,
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
