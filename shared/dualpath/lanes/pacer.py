"""When a chunk may go: a bandwidth, kept by byte debt. Pure; time is passed in, in seconds."""

from __future__ import annotations

BURST_S = 0.002


class Pacer:
    """Emulates a port of `bytes_per_s`.

    A chunk goes as soon as nothing is owed, whole, and is then owed; so late wake-ups are made up for and
    the mean is exact. What an idle port may have saved up is bounded: no more than `burst_bytes`,
    max(2 quanta, 2 ms at the rate), leave at one moment.
    """

    def __init__(self, bytes_per_s: float, quantum_bytes: int) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a port needs a positive rate, not {bytes_per_s}")
        if quantum_bytes < 1:
            raise ValueError(f"a quantum needs at least one byte, not {quantum_bytes}")
        self.bytes_per_s = float(bytes_per_s)
        self.burst_bytes = max(2 * quantum_bytes, int(bytes_per_s * BURST_S))
        # The chunk that makes the debt comes on top of what was saved.
        self._most_saved = float(self.burst_bytes - quantum_bytes)
        self._saved = self._most_saved
        self._at: float | None = None

    def delay_s(self, now_s: float) -> float:
        """Seconds until a chunk may go; 0 when it may go now."""
        self._advance(now_s)
        # Clocks are no finer: waiting for less than half a byte might never end.
        return 0.0 if self._saved > -0.5 else -self._saved / self.bytes_per_s

    def spend(self, now_s: float, nbytes: int) -> None:
        """A chunk of `nbytes` goes; a negative number gives back what was not sent."""
        self._advance(now_s)
        self._saved = min(self._saved - nbytes, self._most_saved)

    def _advance(self, now_s: float) -> None:
        if self._at is None or now_s < self._at:
            self._at = now_s
            return
        gained = (now_s - self._at) * self.bytes_per_s
        self._saved = min(self._saved + gained, self._most_saved)
        self._at = now_s
