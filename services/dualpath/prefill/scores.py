"""Log-probabilities of a prompt, on their way to the gateway."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.bus.nats_bus import Bus
from dualpath.wire.control import AssignPrefill, Ok, PromptScored, gateway_subject
from dualpath.wire.types import TokenScores

PAGE_BYTES = 512 * 1024


class ScoresRefused(Exception):
    """The gateway does not take them; the text says why."""


async def deliver_scores(bus: Bus, assign: AssignPrefill, start: int, scores: TokenScores) -> None:
    """Returns when the gateway has those of prompt tokens `start` and on. Raises ScoresRefused, BusError."""
    for page in pages(scores):
        answer = await bus.request_until_answered(
            gateway_subject(assign.gateway_id),
            PromptScored(assign.attempt, start, page),
            deadline_s=assign.deadline_s,
        )
        if not isinstance(answer, Ok):
            reason = getattr(answer, "reason", type(answer).__name__)
            raise ScoresRefused(f"{assign.gateway_id} took no log-probabilities: {reason}")
        start += len(page)


def pages(scores: TokenScores) -> Iterator[TokenScores]:
    """The same in parts of PAGE_BYTES at most."""
    width = 4 * scores.top
    count = max(PAGE_BYTES // (4 + 2 * width), 1)
    for at in range(0, len(scores), count):
        stop = at + count
        yield TokenScores(
            scores.top,
            scores.chosen[4 * at : 4 * stop],
            scores.ids[width * at : width * stop],
            scores.best[width * at : width * stop],
        )
