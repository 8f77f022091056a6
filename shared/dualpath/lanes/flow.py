"""What is to be seen of one lane in one direction of a NIC. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from dualpath.wire.types import WAIT_BOUNDS_S

SHARE_S = 1.0
"""Shares are of the bytes of this time at least."""


class Flow:
    """Counts of a lane since start. Chunks that were granted at once have waited 0 seconds."""

    __slots__ = ("contended_bytes", "moved_bytes", "wait_s", "waits")

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.contended_bytes = 0
        """Of them, granted while another lane waited as well."""
        self.waits = [0] * (len(WAIT_BOUNDS_S) + 1)
        self.wait_s = 0.0

    def passed(self, nbytes: int) -> None:
        """A chunk went without waiting."""
        self.moved_bytes += nbytes
        self.waits[0] += 1

    def waited(self, nbytes: int, seconds: float) -> None:
        """A chunk went after its turn had come."""
        self.moved_bytes += nbytes
        self.waits[bisect_left(WAIT_BOUNDS_S, seconds)] += 1
        self.wait_s += seconds


class Shares:
    """Each lane's part of a direction's bytes lately: since the last look that is SHARE_S old or older."""

    def __init__(self, lanes: int) -> None:
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque([(0.0, (0,) * lanes)])

    def look(self, now_s: float, moved: Sequence[int]) -> list[float]:
        """Of all bytes so far, `moved` by lane; 0 for each where nothing moved."""
        looks = self._looks
        while len(looks) > 1 and looks[1][0] <= now_s - SHARE_S:
            looks.popleft()
        before = looks[0][1]
        if now_s - looks[-1][0] >= SHARE_S / 4:
            looks.append((now_s, tuple(moved)))
        lately = [now - then for now, then in zip(moved, before, strict=True)]
        total = sum(lately)
        return [part / total if total else 0.0 for part in lately]
