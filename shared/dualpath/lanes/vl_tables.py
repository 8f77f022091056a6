"""InfiniBand's VL arbitration (architecture specification, volume 1, 7.6.9), which the paper configures. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dualpath.lanes.arbiter import Arbiter

T = TypeVar("T")

WEIGHT_UNIT_BYTES = 64
LIMIT_UNIT_BYTES = 4096
UNLIMITED = 255
PACKET_BYTES = 4096
"""The largest MTU; weights are spent packet by packet."""

Entry = tuple[int, int]
"""(VL, weight in units of 64 bytes); a weight of 0 is skipped."""


class _Table:
    """One table, walked round robin. An entry sends until its weight is used up; its last packet goes whole."""

    def __init__(self, entries: Sequence[Entry], lane_of_vl: dict[int, int]) -> None:
        # Entries of VLs that no lane uses never have a packet.
        self._entries = [
            (lane_of_vl[vl], weight * WEIGHT_UNIT_BYTES)
            for vl, weight in entries
            if weight and vl in lane_of_vl
        ]
        self._at = 0
        self._left = self._entries[0][1] if self._entries else 0

    @property
    def lanes(self) -> set[int]:
        return {lane for lane, _ in self._entries}

    def lane(self, has_packet: Sequence[bool]) -> int | None:
        """The lane whose packet this table sends next; None where none of its lanes has one."""
        entries = self._entries
        for step in range(len(entries) + 1):
            index = (self._at + step) % len(entries)
            if has_packet[entries[index][0]] and (step or self._left > 0):
                if step:
                    self._at, self._left = index, entries[index][1]
                return entries[index][0]
        return None

    def sent(self, nbytes: int) -> None:
        """The entry that `lane` found has sent a packet."""
        self._left -= nbytes


class VlTables(Arbiter[T]):
    """A high and a low table of (VL, weight), and a limit of the high one.

    While the high table has a packet and its limit is not used up, it sends; then, or when it has none, the
    low table may send one packet and the limit begins anew. Limit 255: the low table only gets what the
    high one leaves. Packets have PACKET_BYTES at most. A chunk leaves whole, when its first packet would;
    the others are then owed, and as they would have their turns, the lane gets no further chunk. So a lane's
    share is that of the tables whatever the chunks' size.

    `vl_of_lane` gives each lane its VL. Every lane must be in a table with a weight above 0.
    """

    def __init__(
        self,
        vl_of_lane: Sequence[int],
        high: Sequence[Entry],
        low: Sequence[Entry],
        high_limit: int,
        priorities: int = 2,
    ) -> None:
        if not 0 <= high_limit <= UNLIMITED:
            raise ValueError(f"the high limit lies between 0 and {UNLIMITED}, not at {high_limit}")
        lane_of_vl = {vl: lane for lane, vl in enumerate(vl_of_lane)}
        if not vl_of_lane or len(lane_of_vl) < len(vl_of_lane):
            raise ValueError(f"every lane needs a VL of its own, not {list(vl_of_lane)}")
        super().__init__(len(vl_of_lane), priorities)
        self._high, self._low = _Table(high, lane_of_vl), _Table(low, lane_of_vl)
        served = self._high.lanes | self._low.lanes
        for lane, vl in enumerate(vl_of_lane):
            if lane not in served:
                raise ValueError(f"VL {vl} has no weight in either table and could never send")
        self._unlimited = high_limit == UNLIMITED
        # 0 stands for a single packet.
        self._limit = max(high_limit * LIMIT_UNIT_BYTES, 1)
        self._high_left = self._limit
        self._ahead = [0] * len(vl_of_lane)
        self._from_high = False

    def give_back(self, lane: int, nbytes: int) -> None:
        self._ahead[lane] = max(self._ahead[lane] - nbytes, 0)

    def _choose(self) -> int:
        """Let owed packets have their turns until a lane's turn comes that owes nothing."""
        while True:
            has_packet = [
                waiting > 0 or ahead > 0
                for waiting, ahead in zip(self._waiting, self._ahead, strict=True)
            ]
            lane = self._next_lane(has_packet)
            if sum(has_packet) == 1:
                # Alone, it may have all turns at once.
                return lane
            ahead = self._ahead[lane]
            if not ahead:
                return lane
            packet = min(ahead, PACKET_BYTES)
            self._ahead[lane] = ahead - packet
            self._packet_sent(packet)

    def _pay(self, lane: int, nbytes: int) -> None:
        packet = min(nbytes, PACKET_BYTES)
        self._packet_sent(packet)
        self._ahead[lane] = nbytes - packet

    def _next_lane(self, has_packet: Sequence[bool]) -> int:
        high = self._high.lane(has_packet) if self._high.lanes else None
        if high is not None and (self._unlimited or self._high_left > 0):
            self._from_high = True
            return high
        low = self._low.lane(has_packet) if self._low.lanes else None
        self._from_high = low is None
        lane = high if low is None else low
        assert lane is not None, "every lane is in a table, and one has a packet"
        if low is None:
            # The low table let its opportunity pass.
            self._high_left = self._limit
        return lane

    def _packet_sent(self, nbytes: int) -> None:
        units = -(-nbytes // WEIGHT_UNIT_BYTES) * WEIGHT_UNIT_BYTES
        if self._from_high:
            self._high.sent(units)
            self._high_left -= units
        else:
            self._low.sent(units)
            self._high_left = self._limit
