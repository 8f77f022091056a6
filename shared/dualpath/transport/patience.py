"""How long a peer may owe something without being about it. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class Patience:
    """A peer that owes an answer, or is to take bytes, must show some sign of it within `limit_s`.

    Asked now and then; what matters is only what was to be seen when it was asked.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._signs: Hashable = None
        self._since_s: float | None = None

    def exhausted(self, now_s: float, *, owes: bool, signs: Hashable) -> bool:
        """`signs` differ from the last ones where the peer has got on; at first, they always do."""
        if not owes:
            self._since_s = None
        elif self._since_s is None or signs != self._signs:
            self._since_s = now_s
        self._signs = signs
        return self._since_s is not None and now_s - self._since_s > self._limit_s

    def renew(self) -> None:
        """The time until now was not the peer's."""
        self._since_s = None
