"""A NIC of this process: a port for each direction, with lanes."""

from __future__ import annotations

import asyncio

from dualpath.lanes.api import Direction, Lane, Nic, Priority
from dualpath.lanes.arbiter import Arbiter, WeightedRoundRobin
from dualpath.lanes.pacer import Pacer
from dualpath.lanes.port import OpenPort, PacedPort, Port, TurnPort, Waiter
from dualpath.lanes.vl_tables import VlTables
from dualpath.settings.vl import VlArbitration, parse_table
from dualpath.wire.types import NicUse

QUANTUM_S = 0.005
"""A chunk takes no longer than this at the NIC's rate, so that slow NICs stay smooth."""
MIN_QUANTUM_BYTES = 4096
UNPACED_QUANTUM_BYTES = 4 << 20
"""Without a bandwidth a chunk takes far less time, and larger ones cost less."""
_SHARE_PARTS = 10_000


class PacedNic(Nic):
    """A NIC whose bandwidth is emulated, or which is as fast as the process where `bytes_per_s` is None.

    Full duplex: each direction has its own lanes and its own bandwidth, shared by all that use this object.
    `lanes=False` puts everything into one lane; what is counted still tells the lanes apart. With `tables`
    the lanes are arbitrated as InfiniBand does it, else by weights, of which the high lane has `high_share`.
    `quantum_bytes` becomes smaller where it would take more than QUANTUM_S at the rate, and larger without a
    bandwidth. It belongs to one event loop.
    """

    def __init__(
        self,
        name: str,
        bytes_per_s: float | None = None,
        *,
        quantum_bytes: int = 256 * 1024,
        lanes: bool = True,
        high_share: float = 0.99,
        tables: VlArbitration | None = None,
    ) -> None:
        if not 0 < high_share < 1:
            raise ValueError(f"high_share must lie between 0 and 1, not {high_share}")
        self.name = name
        self.bytes_per_s = bytes_per_s
        if bytes_per_s is None:
            self.quantum_bytes = max(quantum_bytes, UNPACED_QUANTUM_BYTES)
        else:
            smooth = max(int(bytes_per_s * QUANTUM_S), MIN_QUANTUM_BYTES)
            self.quantum_bytes = min(quantum_bytes, smooth)
        self._lanes = lanes
        self._high_share = high_share
        self._tables = tables
        one_lane = not lanes
        self.tx: Port
        self.rx: Port
        if bytes_per_s is None:
            self.tx = TurnPort(self._arbiter(), self.quantum_bytes, one_lane=one_lane)
            self.rx = OpenPort(self._arbiter(), one_lane=one_lane)
        else:
            self.tx = self._paced(bytes_per_s)
            self.rx = self._paced(bytes_per_s)

    def _paced(self, bytes_per_s: float) -> PacedPort:
        one_lane = not self._lanes
        pacer = Pacer(bytes_per_s, self.quantum_bytes, 1 if one_lane else len(Lane))
        return PacedPort(self._arbiter(), pacer, one_lane=one_lane)

    def _arbiter(self) -> Arbiter[asyncio.Future[None]]:
        if not self._lanes:
            return WeightedRoundRobin([1], self.quantum_bytes)
        if self._tables is not None:
            tables = self._tables
            return VlTables(
                (tables.vl_of_high_lane, tables.vl_of_low_lane),
                parse_table(tables.high),
                parse_table(tables.low),
                tables.high_limit,
            )
        high = min(max(round(self._high_share * _SHARE_PARTS), 1), _SHARE_PARTS - 1)
        return WeightedRoundRobin([high, _SHARE_PARTS - high], self.quantum_bytes)

    def _check(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self.quantum_bytes:
            raise ValueError(
                f"NIC {self.name} sends chunks of at most {self.quantum_bytes} bytes, not {nbytes}; "
                "split the transfer"
            )

    async def send(self, lane: Lane, nbytes: int, priority: Priority = Priority.BULK) -> None:
        self._check(nbytes)
        ticket = self.tx.ask(lane, nbytes, priority)
        if ticket is not None:
            await self.tx.wait(ticket, lane)

    def try_send(self, lane: Lane, nbytes: int) -> bool:
        return nbytes <= self.quantum_bytes and self.tx.passes(lane, nbytes)

    async def receive(self, lane: Lane, nbytes: int) -> None:
        self._check(nbytes)
        ticket = self.rx.ask(lane, nbytes, Priority.BULK)
        if ticket is not None:
            await self.rx.wait(ticket, lane)

    def try_receive(self, lane: Lane, nbytes: int) -> bool:
        return nbytes <= self.quantum_bytes and self.rx.passes(lane, nbytes)

    def charge(self, lane: Lane, direction: Direction, nbytes: int) -> None:
        (self.tx if direction == "tx" else self.rx).charge(lane, nbytes)

    async def local_copy(self, lane: Lane, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"a copy cannot have {nbytes} bytes")
        if self.bytes_per_s is None:
            # It takes none of the event loop's turns.
            self.tx.flows[lane].passed(nbytes)
            self.rx.flows[lane].passed(nbytes)
            return
        for start in range(0, nbytes, self.quantum_bytes):
            chunk = min(self.quantum_bytes, nbytes - start)
            out = self.tx.ask(lane, chunk, Priority.BULK)
            back = self.rx.ask(lane, chunk, Priority.BULK)
            await self._both(lane, out, back)

    async def _both(self, lane: Lane, out: Waiter | None, back: Waiter | None) -> None:
        """Wait for the grants of both directions, each queued already."""
        try:
            if out is not None:
                await self.tx.wait(out, lane)
        except asyncio.CancelledError:
            if back is not None:
                self.rx.give_up(back)
            raise
        if back is not None:
            await self.rx.wait(back, lane)

    def moved(self) -> dict[tuple[Lane, Direction], int]:
        ports: tuple[tuple[Direction, Port], ...] = (("tx", self.tx), ("rx", self.rx))
        return {(lane, way): port.flows[lane].moved_bytes for way, port in ports for lane in Lane}

    def uses(self) -> list[NicUse]:
        limit = self.bytes_per_s or 0.0
        return [*self.tx.uses(self.name, "tx", limit), *self.rx.uses(self.name, "rx", limit)]

    def close(self) -> None:
        self.tx.close()
        self.rx.close()
