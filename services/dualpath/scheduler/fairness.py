"""Fair shares of the queue between API keys: start-time fair queueing over tokens. Pure."""

from __future__ import annotations

from collections import OrderedDict

_KEYS = 10_000
_LEAST_WEIGHT = 1e-3


class FairShare:
    """Gives each request its place in the queue, a number: lower goes first. Keys that have requests waiting get
    tokens in proportion to their weights; one that was away saves nothing up. With one key this is FIFO."""

    def __init__(self) -> None:
        self._virtual = 0.0
        """The place of the request that was last served."""
        self._next: OrderedDict[str, float] = OrderedDict()
        """By key, where its next request may stand; of the keys that came last."""

    def place(self, tenant: str, weight: float, tokens: int) -> float:
        """For a request of `tokens` (1 or more) that arrives now. Later ones of a tenant have higher places."""
        start = max(self._virtual, self._next.get(tenant, 0.0))
        self._next[tenant] = start + max(tokens, 1) / max(weight, _LEAST_WEIGHT)
        self._next.move_to_end(tenant)
        if len(self._next) > _KEYS:
            self._next.popitem(last=False)
        return start

    def served(self, place: float) -> None:
        """A request has left the queue for an engine."""
        self._virtual = max(self._virtual, place)
