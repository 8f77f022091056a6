"""The life of a request, as one table. Whoever tracks a request moves it only through `advance`."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What a request is doing; the values are the labels of logs, metrics and Explain."""

    QUEUED = "queued"
    PAIRED = "paired"
    LOADING = "loading"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    DECODE = "decode"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


TERMINAL = frozenset({Phase.DONE, Phase.CANCELLED, Phase.FAILED})

_FORWARD: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PAIRED}),
    Phase.PAIRED: frozenset({Phase.LOADING}),
    Phase.LOADING: frozenset({Phase.PREFILL}),
    Phase.PREFILL: frozenset({Phase.HANDOFF}),
    # One token, EOS or a stop id: a request may end without decoding.
    Phase.HANDOFF: frozenset({Phase.DECODE, Phase.DONE}),
    Phase.DECODE: frozenset({Phase.DONE}),
}

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    phase: (frozenset() if phase in TERMINAL else _FORWARD[phase] | {Phase.CANCELLED, Phase.FAILED})
    for phase in Phase
}


class IllegalTransition(RuntimeError):
    """A request was moved where the table does not lead: an error of the caller."""


def advance(current: Phase, target: Phase) -> Phase:
    """Return `target`; raise IllegalTransition where `current` does not lead there."""
    if target not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(p.value for p in TRANSITIONS[current])) or "nothing"
        raise IllegalTransition(
            f"a request cannot go from {current.value} to {target.value}; "
            f"from {current.value} it can go to {allowed}"
        )
    return target
