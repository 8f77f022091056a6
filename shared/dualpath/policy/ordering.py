"""Who stands where in a queue. Pure."""

from __future__ import annotations

from dualpath.policy.api import Ordering, QueuedRequest


class Fifo(Ordering):
    """The paper's: by priority, then in the order of arrival."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        return request.priority, request.arrival


class ShortFirst(Ordering):
    """TTFT-aware: who has less to compute may overtake, but nobody for longer than its own work is worth.

    A request stands where one without work would that came `weight` · (its work) later: its place is fixed when it
    comes, and what comes after that moment is behind it, so that nobody starves. `tokens_per_s` turns tokens to
    compute into time.
    """

    def __init__(self, tokens_per_s: float, weight: float = 8.0) -> None:
        if tokens_per_s <= 0 or weight < 0:
            raise ValueError(
                f"an order by {tokens_per_s:g} tokens per second and weight {weight:g} is none; "
                "give a rate above 0 and a weight of 0 or more"
            )
        self._seconds_per_token = weight / tokens_per_s

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        due = request.arrived_s + request.new_tokens * self._seconds_per_token
        return request.priority, due, request.arrival
