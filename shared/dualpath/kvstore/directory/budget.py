"""How much each client of a directory may write, so that all together keep within its capacity. Pure.

Clients count the bytes that they have ever written; the keeper says up to which count each may go. Room that a client
may still use, as far as the keeper can know, counts as taken: so however late it hears, the capacity is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Report(msgspec.Struct, frozen=True):
    """What a client says of itself."""

    beat: int
    """Another one each time."""
    block_bytes: int
    """What one of its blocks takes."""
    finished_bytes: int
    """All that it has ever stored."""
    limit_bytes: int = 0
    """Up to where it may go, or has gone."""
    census: int = 0
    """The number of the census that told it so."""


class Budget:
    """One client's. Bytes are reserved before they are written, and settled afterwards."""

    def __init__(self, *, limited: bool) -> None:
        self.finished_bytes = 0
        """All that was ever stored."""
        self.limit_bytes: int | None = 0 if limited else None
        self.census = 0
        """Which census said so."""
        self._reserved_bytes = 0

    def report(self, beat: int, block_bytes: int) -> Report:
        bound = max(self.limit_bytes or 0, self._reserved_bytes)
        return Report(beat, block_bytes, self.finished_bytes, bound, self.census)

    def reserve(self, nbytes: int) -> bool:
        if self.limit_bytes is not None and self._reserved_bytes + nbytes > self.limit_bytes:
            return False
        self._reserved_bytes += nbytes
        return True

    def settle(self, nbytes: int, *, stored: bool) -> None:
        """What was reserved is on the disk now, or will not get there."""
        if stored:
            self.finished_bytes += nbytes
        else:
            self._reserved_bytes -= nbytes


def headroom_bytes(capacity_bytes: int, reports: Mapping[str, Report]) -> int:
    """Room that is kept free for what clients write until blocks are removed again."""
    return max(capacity_bytes // 10, sum(report.block_bytes for report in reports.values()))


def share_out(
    capacity_bytes: int,
    taken_bytes: int,
    reports: Mapping[str, Report],
    limits: Mapping[str, int],
    census: int,
) -> dict[str, int]:
    """The limits of the clients, from the reports that they made before `taken_bytes` were counted, and the `limits`
    of the last census, whose number is given.

    A client that has not heard of that yet keeps its limit, since nobody knows which it will hear of. What is taken,
    and what clients may still write, is never more than the capacity, where it was not before.
    """
    bounds = {
        name: max(report.limit_bytes, limits.get(name, 0), report.finished_bytes)
        for name, report in reports.items()
    }
    left = capacity_bytes - taken_bytes
    # Half of what is free, so that it is there for others too; all that is kept free, once it is only that.
    fair = max(headroom_bytes(capacity_bytes, reports), left // 2) // max(1, len(reports))
    for name, report in reports.items():
        left -= bounds[name] - report.finished_bytes
    new = {}
    for name, report in reports.items():
        if name in limits and report.census != census:
            new[name] = limits[name]
        else:
            more = min(report.finished_bytes + fair - bounds[name], left)
            left -= max(0, more)
            new[name] = bounds[name] + more
    return new
