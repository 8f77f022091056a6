"""Which regions of this process are open to peers."""

from __future__ import annotations

import secrets
from collections import deque
from enum import Enum

from dualpath.transport.api import Region

REMEMBERED_KEYS = 1 << 16
"""So many of the latest revoked keys are told apart from keys that were never issued. A write that arrives
for an older one costs the link, as a forged key does: it is then at least this many requests late."""


class Closed(Enum):
    """Why a key opens nothing."""

    REVOKED = "revoked"
    NEVER_ISSUED = "never issued"


class Regions:
    """Open regions by key. Keys are random and never used twice by this process."""

    def __init__(self, remembered_keys: int = REMEMBERED_KEYS) -> None:
        self._open: dict[int, Region] = {}
        self._revoked: set[int] = set()
        self._order: deque[int] = deque()
        self._remembered_keys = remembered_keys

    def __len__(self) -> int:
        return len(self._open)

    def register(self, region: Region) -> int:
        key = secrets.randbits(63)
        while key in self._open or key in self._revoked or not key:
            key = secrets.randbits(63)
        self._open[key] = region
        return key

    def revoke(self, key: int) -> None:
        if self._open.pop(key, None) is None:
            return
        if len(self._order) >= self._remembered_keys:
            self._revoked.discard(self._order.popleft())
        self._order.append(key)
        self._revoked.add(key)

    def find(self, key: int) -> Region | Closed:
        region = self._open.get(key)
        if region is not None:
            return region
        return Closed.REVOKED if key in self._revoked else Closed.NEVER_ISSUED
