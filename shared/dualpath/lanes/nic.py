"""A NIC of this process: an arbiter and a pacer for each direction, run by the event loop."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from time import monotonic
from types import TracebackType

from dualpath.lanes.api import Lane, Nic, Priority
from dualpath.lanes.arbiter import Arbiter, Ticket
from dualpath.lanes.pacer import Pacer

QUANTUM_S = 0.005
"""A chunk takes no longer than this at the NIC's rate, so that slow NICs stay smooth."""
MIN_QUANTUM_BYTES = 4096
UNPACED_QUANTUM_BYTES = 1 << 20
"""Where nothing is decided chunk by chunk, larger chunks cost less."""
_SHARE_PARTS = 10_000

Waiter = Ticket[asyncio.Future[None]]


class _Port:
    """One direction of a NIC. Its clock is not the loop's, which may be as coarse as a millisecond."""

    def __init__(self, arbiter: Arbiter[asyncio.Future[None]], pacer: Pacer | None) -> None:
        self.bytes_moved = dict.fromkeys(Lane, 0)
        self._arbiter = arbiter
        self._pacer = pacer
        self._timer: asyncio.Handle | None = None

    def ask(self, lane: Lane, queue: int, nbytes: int, priority: Priority) -> Waiter | None:
        """Queue a chunk; None where it was granted at once."""
        if self._pacer is None:
            self.bytes_moved[lane] += nbytes
            return None
        loop = asyncio.get_running_loop()
        if not self._arbiter:
            now = monotonic()
            if self._pacer.delay_s(now) <= 0:
                # Through the arbiter all the same: it keeps the account of the lanes.
                self._arbiter.push(loop.create_future(), queue, nbytes, priority)
                self._arbiter.pop()
                self._pacer.spend(now, nbytes)
                self.bytes_moved[lane] += nbytes
                return None
        ticket = self._arbiter.push(loop.create_future(), queue, nbytes, priority)
        if self._timer is None:
            self._grant()
        return ticket

    async def wait(self, ticket: Waiter, lane: Lane) -> None:
        try:
            await ticket.item
        except asyncio.CancelledError:
            self.give_up(ticket)
            raise
        self.bytes_moved[lane] += ticket.nbytes

    def give_up(self, ticket: Waiter) -> None:
        """Take a chunk out of the queue, or give back what it was granted already."""
        if not self._arbiter.cancel(ticket) and self._pacer is not None:
            self._pacer.spend(monotonic(), -ticket.nbytes)

    def _grant(self) -> None:
        """Grant one chunk, and come back after its owner had the chance to ask for the next one: else a
        burst would pass the lanes that ask chunk by chunk."""
        self._timer = None
        pacer = self._pacer
        if pacer is None or not self._arbiter:
            return
        loop = asyncio.get_running_loop()
        now = monotonic()
        delay = pacer.delay_s(now)
        if delay > 0:
            self._timer = loop.call_later(delay, self._grant)
            return
        ticket = self._arbiter.pop()
        if ticket is not None:
            pacer.spend(now, ticket.nbytes)
            if not ticket.item.done():
                ticket.item.set_result(None)
        self._timer = loop.call_soon(self._grant)


class _Sending(AbstractAsyncContextManager[None]):
    """A chunk on its way out; see `Nic.send`."""

    __slots__ = ("_lane", "_nbytes", "_nic", "_priority")

    def __init__(self, nic: PacedNic, lane: Lane, nbytes: int, priority: Priority) -> None:
        self._nic = nic
        self._lane = lane
        self._nbytes = nbytes
        self._priority = priority

    async def __aenter__(self) -> None:
        nic, lane = self._nic, self._lane
        ticket = nic.tx.ask(lane, nic.queue_of(lane), self._nbytes, self._priority)
        if ticket is not None:
            await nic.tx.wait(ticket, lane)
        nic.in_flight_bytes[lane] += self._nbytes

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._nic.in_flight_bytes[self._lane] -= self._nbytes


class PacedNic(Nic):
    """A NIC whose bandwidth is emulated, or which grants at once where `bytes_per_s` is None.

    Full duplex: each direction has its own lanes and its own bandwidth, shared by all that use this object.
    `lanes=False` puts everything into one lane; metrics still tell the lanes apart. `quantum_bytes`
    becomes smaller where it would take more than QUANTUM_S at the rate, and larger without a bandwidth.
    `in_flight_bytes` are those of open `send` contexts, by lane.
    """

    def __init__(
        self,
        name: str,
        bytes_per_s: float | None = None,
        *,
        quantum_bytes: int = 256 * 1024,
        lanes: bool = True,
        high_share: float = 0.99,
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
        high = min(max(round(high_share * _SHARE_PARTS), 1), _SHARE_PARTS - 1)
        weights = [high, _SHARE_PARTS - high] if lanes else [1]
        self.tx = self._port(weights)
        self.rx = self._port(weights)
        self.in_flight_bytes = dict.fromkeys(Lane, 0)

    def _port(self, weights: list[int]) -> _Port:
        pacer = None if self.bytes_per_s is None else Pacer(self.bytes_per_s, self.quantum_bytes)
        return _Port(Arbiter(weights, self.quantum_bytes), pacer)

    def queue_of(self, lane: Lane) -> int:
        """The arbiter's lane that carries `lane`."""
        return int(lane) if self._lanes else 0

    def _check(self, nbytes: int) -> None:
        if not 0 <= nbytes <= self.quantum_bytes:
            raise ValueError(
                f"NIC {self.name} sends chunks of at most {self.quantum_bytes} bytes, not {nbytes}; "
                "split the transfer"
            )

    def send(
        self, lane: Lane, nbytes: int, priority: Priority = Priority.BULK
    ) -> AbstractAsyncContextManager[None]:
        self._check(nbytes)
        return _Sending(self, lane, nbytes, priority)

    async def receive(self, lane: Lane, nbytes: int) -> None:
        self._check(nbytes)
        ticket = self.rx.ask(lane, self.queue_of(lane), nbytes, Priority.BULK)
        if ticket is not None:
            await self.rx.wait(ticket, lane)

    async def local_copy(self, lane: Lane, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"a copy cannot have {nbytes} bytes")
        if self.bytes_per_s is None:
            self.tx.bytes_moved[lane] += nbytes
            self.rx.bytes_moved[lane] += nbytes
            return
        queue = self.queue_of(lane)
        for start in range(0, nbytes, self.quantum_bytes):
            chunk = min(self.quantum_bytes, nbytes - start)
            out = self.tx.ask(lane, queue, chunk, Priority.BULK)
            back = self.rx.ask(lane, queue, chunk, Priority.BULK)
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

    def moved(self) -> dict[tuple[Lane, str], int]:
        ports = (("tx", self.tx), ("rx", self.rx))
        return {(lane, way): port.bytes_moved[lane] for way, port in ports for lane in Lane}
