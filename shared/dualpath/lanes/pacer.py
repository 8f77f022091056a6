"""When a chunk may go: a bandwidth, kept by byte debt. Pure; time is passed in, in seconds."""

from __future__ import annotations

BURST_S = 0.002
DEBT_QUANTA = 1.5
"""What may be owed at most: a chunk on its way, and one of half a quantum that goes before it."""


class Pacer:
    """Emulates a port of `bytes_per_s` with lanes.

    A chunk goes whole, as soon as its lane and those before it owe nothing, and is then owed. What later
    lanes owe is put off: a port arbitrates by packets, so a chunk that is on its way holds up nobody of more
    weight. Time that passes while nobody waits is lost, as on a wire; time lost to late wake-ups while
    somebody waits is made up for, so the mean is exact. In any time t no more than t · bytes_per_s +
    `burst_bytes` leave; those are max(2 quanta, 2 ms at the rate).
    """

    def __init__(self, bytes_per_s: float, quantum_bytes: int, lanes: int = 1) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a port needs a positive rate, not {bytes_per_s}")
        if quantum_bytes < 1:
            raise ValueError(f"a quantum needs at least one byte, not {quantum_bytes}")
        self.bytes_per_s = float(bytes_per_s)
        self.burst_bytes = max(2 * quantum_bytes, int(bytes_per_s * BURST_S))
        self._most_debt = DEBT_QUANTA * quantum_bytes
        self._most_late = self.burst_bytes - self._most_debt
        self._late = 0.0
        self._debt = [0.0] * lanes
        self._at: float | None = None

    def advance(self, now_s: float, *, waiting: bool) -> None:
        """Time has passed; `waiting`: while somebody waited for it. Debts are paid, first lanes first."""
        if self._at is None or now_s < self._at:
            self._at = now_s
            return
        gained = (now_s - self._at) * self.bytes_per_s
        self._at = now_s
        for lane, debt in enumerate(self._debt):
            if debt > 0:
                paid = min(debt, gained)
                self._debt[lane] = debt - paid
                gained -= paid
        if waiting:
            self._late = min(self._late + gained, self._most_late)

    def delay_s(self, lane: int, nbytes: int) -> float:
        """Seconds until a chunk of `lane` may go; 0 when it may go now."""
        before = sum(self._debt[: lane + 1])
        beyond = sum(self._debt) + nbytes - self._most_debt
        owed = max(before, beyond)
        # Clocks are no finer: waiting for less than half a byte might never end.
        return 0.0 if owed < 0.5 else owed / self.bytes_per_s

    def spend(self, lane: int, nbytes: int) -> None:
        """A chunk goes, or bytes that nobody could ask for first."""
        made_up = min(self._late, nbytes)
        self._late -= made_up
        self._debt[lane] += nbytes - made_up

    def give_back(self, lane: int, nbytes: int) -> None:
        """A chunk was not sent after all."""
        owed = min(self._debt[lane], nbytes)
        self._debt[lane] -= owed
        self._late = min(self._late + nbytes - owed, self._most_late)
