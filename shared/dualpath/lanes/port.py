"""One direction of a NIC on the event loop: lanes queue at an arbiter, and a bandwidth may hold them back."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import monotonic

from dualpath.lanes.alarm import Alarm
from dualpath.lanes.api import Lane, Priority
from dualpath.lanes.arbiter import Arbiter, Ticket
from dualpath.lanes.flow import Flow, Shares
from dualpath.lanes.pacer import Pacer
from dualpath.wire.types import NicUse

GUARD_S = 0.1
"""Model execution speaks many times in so long a time, if it does at all."""

Waiter = Ticket[asyncio.Future[None]]


class Port(ABC):
    """Grants chunks in the arbiter's order. `one_lane` queues everything in lane 0; it is counted apart."""

    def __init__(self, arbiter: Arbiter[asyncio.Future[None]], *, one_lane: bool) -> None:
        self.flows = [Flow() for _ in Lane]
        self._arbiter = arbiter
        self._one_lane = one_lane
        self._shares = Shares(len(Lane))
        self._turn_comes = False

    @abstractmethod
    def ask(self, lane: Lane, nbytes: int, priority: Priority) -> Waiter | None:
        """Queue a chunk; None where it was granted at once, else `wait` for it or `give_up`."""

    @abstractmethod
    def passes(self, lane: Lane, nbytes: int) -> bool:
        """Grant a chunk at once where nothing is to be waited for; else False, and it is not queued. A port may leave
        all chunks to `ask`."""

    @abstractmethod
    def charge(self, lane: Lane, nbytes: int) -> None:
        """Bytes pass that cannot wait (headers, acknowledgements): later chunks wait for them."""

    @abstractmethod
    def _refund(self, ticket: Waiter) -> None:
        """A granted chunk is not sent after all."""

    @abstractmethod
    def _turn(self) -> None:
        """The owners of what was granted had the chance to ask for their next chunks: grant on."""

    @abstractmethod
    def close(self) -> None:
        """Free what the port holds; nothing may be asked any more."""

    async def wait(self, ticket: Waiter, lane: Lane) -> None:
        """Until the chunk is granted; cancelling gives it up."""
        began = monotonic()
        try:
            await ticket.item
        except asyncio.CancelledError:
            self.give_up(ticket)
            raise
        self.flows[lane].waited(ticket.nbytes, monotonic() - began)

    def give_up(self, ticket: Waiter) -> None:
        """Take a chunk out of the queue, or give back what it was granted already."""
        if not self._arbiter.cancel(ticket):
            self._arbiter.give_back(ticket.lane, ticket.nbytes)
            self._refund(ticket)

    def uses(self, nic: str, direction: str, limit_bytes_per_s: float) -> list[NicUse]:
        """What is to be seen, by lane. Without lanes the one queue is shown at the first."""
        moved = [flow.moved_bytes for flow in self.flows]
        shares = self._shares.look(monotonic(), moved)
        queues = 1 if self._one_lane else len(self.flows)
        return [
            NicUse(
                nic=nic,
                lane=lane.name.lower(),
                direction=direction,
                nbytes=flow.moved_bytes,
                contended_bytes=flow.contended_bytes,
                waiting=self._arbiter.waiting(lane) if lane < queues else 0,
                waiting_bytes=self._arbiter.waiting_bytes(lane) if lane < queues else 0,
                share=share,
                waits=tuple(flow.waits),
                wait_s=flow.wait_s,
                limit_bytes_per_s=limit_bytes_per_s,
            )
            for lane, flow, share in zip(Lane, self.flows, shares, strict=True)
        ]

    def _queue_of(self, lane: Lane) -> int:
        return 0 if self._one_lane else int(lane)

    def _push(self, lane: Lane, nbytes: int, priority: Priority) -> Waiter:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self._arbiter.push(future, self._queue_of(lane), nbytes, priority)

    def _grant(self) -> int:
        """Grant the next chunk; returns its bytes."""
        contended = self._arbiter.contended
        ticket = self._arbiter.pop()
        assert ticket is not None, "asked only where something waits"
        if contended:
            self.flows[ticket.lane].contended_bytes += ticket.nbytes
        # Its owner may have been cancelled in this turn of the loop, and gives it up in the next.
        if not ticket.item.done():
            ticket.item.set_result(None)
        return ticket.nbytes

    def _come_back(self) -> None:
        """Call `_turn` behind all that is ready to run now."""
        if not self._turn_comes:
            self._turn_comes = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_comes = False
        self._turn()


class PacedPort(Port):
    """A port of a certain bandwidth.

    One chunk is granted per turn of the event loop, so that lanes that ask chunk by chunk are heard in between.
    """

    def __init__(
        self, arbiter: Arbiter[asyncio.Future[None]], pacer: Pacer, *, one_lane: bool
    ) -> None:
        super().__init__(arbiter, one_lane=one_lane)
        self._pacer = pacer
        self._alarm: Alarm | None = None

    def ask(self, lane: Lane, nbytes: int, priority: Priority) -> Waiter | None:
        arbiter, pacer = self._arbiter, self._pacer
        waiting = len(arbiter) > 0
        pacer.advance(monotonic(), waiting=waiting)
        pacer.end_pause()
        ticket = self._push(lane, nbytes, priority)
        if not waiting and pacer.delay_s(ticket.lane, nbytes) <= 0:
            # Through the arbiter all the same: it keeps the account of the lanes.
            arbiter.pop()
            pacer.spend(ticket.lane, nbytes)
            self.flows[lane].passed(nbytes)
            return None
        if not self._turn_comes:
            self._next()
        return ticket

    def passes(self, lane: Lane, nbytes: int) -> bool:
        """Never: a bandwidth is waited for in `ask`'s order."""
        return False

    def charge(self, lane: Lane, nbytes: int) -> None:
        self._pacer.advance(monotonic(), waiting=len(self._arbiter) > 0)
        self._pacer.spend(self._queue_of(lane), nbytes)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _refund(self, ticket: Waiter) -> None:
        self._pacer.give_back(ticket.lane, ticket.nbytes)

    def _turn(self) -> None:
        if self._arbiter:
            self._pacer.advance(monotonic(), waiting=True)
            self._next()

    def _next(self) -> None:
        """Grant the next chunk and come back in a turn, or come back when it may go."""
        ticket = self._arbiter.peek()
        if ticket is None:
            return
        delay = self._pacer.delay_s(ticket.lane, ticket.nbytes)
        if delay > 0:
            if self._alarm is None:
                self._alarm = Alarm(self._turn)
            self._alarm.set(delay)
            return
        self._pacer.spend(ticket.lane, self._grant())
        self._come_back()


class TurnPort(Port):
    """A way out that is as fast as this process: what it shares out is turns of the event loop.

    While the high lane is in use, which it is until GUARD_S after its last chunk, `turn_bytes` are granted
    in one turn, and the chunk that makes them full; the rest waits at the arbiter for the next. So however
    many transfers of the low lane are ready, a chunk of the high lane waits for one chunk of theirs at most
    before the socket gets it. Without it all is granted at once, which costs less.
    """

    def __init__(
        self, arbiter: Arbiter[asyncio.Future[None]], turn_bytes: int, *, one_lane: bool
    ) -> None:
        super().__init__(arbiter, one_lane=one_lane)
        self._turn_bytes = turn_bytes
        self._left = turn_bytes
        self._guarded_until_s = 0.0

    def ask(self, lane: Lane, nbytes: int, priority: Priority) -> Waiter | None:
        if self.passes(lane, nbytes):
            return None
        return self._push(lane, nbytes, priority)

    def passes(self, lane: Lane, nbytes: int) -> bool:
        now_s = monotonic()
        if lane is Lane.HIGH and not self._one_lane:
            self._guarded_until_s = now_s + GUARD_S
        if self._arbiter:
            return False
        if now_s < self._guarded_until_s:
            if self._left <= 0:
                return False
            self._left -= nbytes
            self._come_back()
        self.flows[lane].passed(nbytes)
        return True

    def charge(self, lane: Lane, nbytes: int) -> None:
        """Nothing: no bandwidth, nothing to wait for."""

    def close(self) -> None:
        """Nothing is held."""

    def _refund(self, ticket: Waiter) -> None:
        """Nothing: the turn is over soon."""

    def _turn(self) -> None:
        self._left = self._turn_bytes
        while self._left > 0 and self._arbiter:
            self._left -= self._grant()
        if self._left < self._turn_bytes:
            self._come_back()


class OpenPort(Port):
    """A way in, or of local copies, that is as fast as this process: all has arrived already, and is counted."""

    def ask(self, lane: Lane, nbytes: int, priority: Priority) -> Waiter | None:
        self.flows[lane].passed(nbytes)
        return None

    def passes(self, lane: Lane, nbytes: int) -> bool:
        self.flows[lane].passed(nbytes)
        return True

    def charge(self, lane: Lane, nbytes: int) -> None:
        """Nothing: no bandwidth, nothing to wait for."""

    def close(self) -> None:
        """Nothing is held."""

    def _refund(self, ticket: Waiter) -> None:
        """Nothing ever waits."""

    def _turn(self) -> None:
        """Nothing ever waits."""
