"""Computing that takes an emulated time. Pure."""

from __future__ import annotations

MAX_CREDIT_S = 0.1
EARLY_S = 0.001


class EmulatedTime:
    """Says until when emulated computations last; wake-ups that come late or early do not add up.

    Time that a computation took too long is credited to the next ones (up to MAX_CREDIT_S, so that a
    stalled process does not rush afterwards). One that would end within EARLY_S may end at once: what it
    lacks is added to the next. Idle time between computations is neither.
    """

    def __init__(self) -> None:
        self._credit_s = 0.0
        self._end = 0.0

    def begin(self, now: float, duration_s: float) -> float:
        """A computation begins; returns the time at which it ends."""
        self._end = now + duration_s - self._credit_s
        self._credit_s = 0.0
        return self._end

    def pause(self, now: float) -> float:
        """Seconds to sleep before it ends; 0 where that is not worth while."""
        left = self._end - now
        return left if left > EARLY_S else 0.0

    def end(self, now: float) -> None:
        """The computation has been waited for."""
        self._credit_s = min(now - self._end, MAX_CREDIT_S)
