"""Which blocks were seen a short while ago. Pure: the clock comes in."""

from __future__ import annotations

from collections import OrderedDict


class Known:
    """Keys by when they were last seen, the latest `most` of them: asking for each would take a request."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, key: bytes, now: float) -> None:
        self._seen[key] = now
        self._seen.move_to_end(key)
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def forget(self, key: bytes) -> None:
        self._seen.pop(key, None)

    def holds(self, key: bytes, now: float) -> bool:
        seen = self._seen.get(key)
        return seen is not None and now - seen <= self._seconds
