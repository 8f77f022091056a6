"""What the scheduler knows of one attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dualpath.blocks import Phase, advance
from dualpath.blocks.lifecycle import TERMINAL
from dualpath.policy.api import EngineId, QueuedRequest, ReadSplit
from dualpath.wire.control import Submit
from dualpath.wire.types import Attempt

_ORDER = (
    Phase.QUEUED,
    Phase.PAIRED,
    Phase.LOADING,
    Phase.PREFILL,
    Phase.HANDOFF,
    Phase.DECODE,
    Phase.DONE,
)

WAIT_PREFIX, WAIT_DECODE, WAIT_SLOTS, WAIT_PREFILL = "prefix", "decode", "slots", "prefill"
"""What a QUEUED attempt waits for: another one that computes its prefix, a DE, its slots, a PE."""


@dataclass(eq=False)
class AttemptRecord:
    """`arrival` is its request's place in the queue (`fairness`), given with the first attempt, which came at
    `arrived_s`; `gateway_incarnation` is the life of the gateway that submitted it, `waiting_for` is empty once it is
    paired."""

    submit: Submit
    arrival: float
    gateway_incarnation: str
    new_tokens: int
    needed_tokens: int
    hit_blocks: int
    entered_at: float
    deadline_at: float
    arrived_s: float = 0.0
    phase: Phase = Phase.QUEUED
    since: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    waits_s: dict[str, float] = field(default_factory=dict)
    waiting_for: str = WAIT_DECODE
    waiting_since: float = 0.0
    decode: EngineId | None = None
    prefill: EngineId | None = None
    region_key: int | None = None
    split: ReadSplit = ReadSplit(0, 0)  # noqa: RUF009 - frozen
    unanswered: set[str] = field(default_factory=set)
    """Assignments of the pairing that were not answered yet."""

    def __post_init__(self) -> None:
        self.since = self.waiting_since = self.entered_at

    @property
    def attempt(self) -> Attempt:
        return self.submit.attempt

    def queued(self) -> QueuedRequest:
        """As policies see it while it waits for a DE; its name there is the attempt's."""
        return QueuedRequest(
            str(self.attempt),
            self.submit.prompt_tokens,
            self.new_tokens,
            self.needed_tokens,
            self.submit.priority,
            self.arrival,
            self.arrived_s,
        )

    def hits_are(self, blocks: int, block_tokens: int) -> None:
        """More is stored than its gateway knew."""
        self.new_tokens -= (blocks - self.hit_blocks) * block_tokens
        self.hit_blocks = blocks

    def wait_for(self, what: str, now: float) -> None:
        """QUEUED: what it waited for is there, it waits for `what` next."""
        self._stop_waiting(now)
        self.waiting_for = what

    def _stop_waiting(self, now: float) -> None:
        if self.waiting_for:
            spent = now - self.waiting_since
            self.waits_s[self.waiting_for] = self.waits_s.get(self.waiting_for, 0.0) + spent
        self.waiting_for, self.waiting_since = "", now

    def behind(self, phase: Phase) -> bool:
        """Is `phase` still to come?"""
        return self.phase in _ORDER and _ORDER.index(self.phase) < _ORDER.index(phase)

    def reach(self, phase: Phase, now: float) -> None:
        """Go to `phase`, through what lies between: whoever reports it has seen that happen.

        Raises IllegalTransition where the life cycle does not lead there.
        """
        if phase in TERMINAL and phase is not Phase.DONE:
            self._enter(phase, now)
            return
        while self.phase is not phase:
            direct = phase is Phase.DONE and self.phase is Phase.HANDOFF
            following = _ORDER[_ORDER.index(self.phase) + 1] if self.behind(phase) else phase
            self._enter(phase if direct else following, now)

    def _enter(self, phase: Phase, now: float) -> None:
        target = advance(self.phase, phase)
        if self.phase is Phase.QUEUED:
            self._stop_waiting(now)
        self.phases_s[self.phase.value] = now - self.since
        self.phase, self.since = target, now
