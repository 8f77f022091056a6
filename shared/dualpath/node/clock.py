"""How long a request stayed in each phase."""

from __future__ import annotations

import time

from dualpath.blocks import Phase, advance


class PhaseClock:
    """Tracks the phase of one attempt on one node; every move is checked against the table."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.spent_s: dict[str, float] = {}
        self._since = time.monotonic()

    @property
    def here_s(self) -> float:
        """Seconds in the present phase so far."""
        return time.monotonic() - self._since

    def move(self, target: Phase) -> None:
        """Raise IllegalTransition where the life cycle does not lead from here to `target`."""
        self.phase, left = advance(self.phase, target), self.phase
        now = time.monotonic()
        self.spent_s[left.value] = self.spent_s.get(left.value, 0.0) + now - self._since
        self._since = now
