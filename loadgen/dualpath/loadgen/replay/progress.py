"""How far a replay is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a replay is. `agents_all` and `turns_all` are None where no end is known."""

    seconds: float
    agents_started: int
    agents_ended: int
    agents_all: int | None
    turns: int
    turns_all: int | None
    errors: int
    retries: int
    in_flight: int
    generated_tokens: int
    ttft_s: float | None
    """Mean of the last ten seconds."""
    lag_s: float
    """The client's worst of the last second."""

    @property
    def eta_s(self) -> float | None:
        """At the rate of turns so far."""
        if self.turns_all is None or not self.turns:
            return None
        return self.seconds * (self.turns_all - self.turns) / self.turns
