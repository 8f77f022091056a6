"""When a chunk may go: a bandwidth, kept by byte debt. Pure; time is passed in, in seconds."""

from __future__ import annotations

BURST_S = 0.002
PAUSE_S = 0.001
PAUSE_CHUNKS = 2
"""A pause of no more than PAUSE_S, or of so many chunks' time, is not the sender's but that of a busy processor."""


class Pacer:
    """Emulates a port of `bytes_per_s` with lanes.

    A chunk goes whole, as soon as its lane and those before it owe nothing, and is then owed. What later
    lanes owe is put off: a port arbitrates by packets, so a chunk that is on its way holds up nobody of more
    weight. An idle port's time is lost, as on a wire; time lost to late wake-ups while somebody waits, and to
    pauses too short to be meant, is made up for, so the mean is exact. In any time t no more than
    t · bytes_per_s + `burst_bytes` leave; those are max(2 quanta, 2 ms at the rate).
    """

    def __init__(self, bytes_per_s: float, quantum_bytes: int, lanes: int = 1) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a port needs a positive rate, not {bytes_per_s}")
        if quantum_bytes < 1:
            raise ValueError(f"a quantum needs at least one byte, not {quantum_bytes}")
        self.bytes_per_s = float(bytes_per_s)
        self.burst_bytes = max(2 * quantum_bytes, int(bytes_per_s * BURST_S))
        self._pause_bytes = max(bytes_per_s * PAUSE_S, float(PAUSE_CHUNKS * quantum_bytes))
        self._debt = [0.0] * lanes
        self._late = 0.0
        """Bytes to make up for."""
        self._idle = 0.0
        """Bytes that could have gone while nobody waited, since the last chunk."""
        self._excess = 0.0
        """The most that has left in any time until now beyond what the rate gives in it."""
        self._at: float | None = None

    def advance(self, now_s: float, *, waiting: bool) -> None:
        """Time has passed; `waiting`: while somebody waited for it. Debts are paid, first lanes first."""
        if self._at is None or now_s < self._at:
            self._at = now_s
            return
        gained = (now_s - self._at) * self.bytes_per_s
        self._at = now_s
        self._excess = max(self._excess - gained, 0.0)
        for lane, debt in enumerate(self._debt):
            if debt > 0:
                paid = min(debt, gained)
                self._debt[lane] = debt - paid
                gained -= paid
        if waiting:
            self._late = min(self._late + gained, self.burst_bytes)
        else:
            self._idle += gained

    def end_pause(self) -> None:
        """Somebody asks: what was idle until now was a pause, if it was short."""
        if self._idle <= self._pause_bytes:
            self._late = min(self._late + self._idle, self.burst_bytes)
        else:
            self._late = 0.0
        self._idle = 0.0

    def delay_s(self, lane: int, nbytes: int) -> float:
        """Seconds until a chunk of `lane` may go; 0 when it may go now."""
        owed = max(sum(self._debt[: lane + 1]), self._excess + nbytes - self.burst_bytes)
        # Clocks are no finer: waiting for less than half a byte might never end.
        return 0.0 if owed < 0.5 else owed / self.bytes_per_s

    def spend(self, lane: int, nbytes: int) -> None:
        """A chunk goes, or bytes that nobody could ask for first."""
        made_up = min(self._late, nbytes)
        self._late -= made_up
        self._debt[lane] += nbytes - made_up
        self._excess += nbytes

    def give_back(self, lane: int, nbytes: int) -> None:
        """A chunk was not sent after all."""
        owed = min(self._debt[lane], nbytes)
        self._debt[lane] -= owed
        self._late = min(self._late + nbytes - owed, self.burst_bytes)
        self._excess = max(self._excess - nbytes, 0.0)
