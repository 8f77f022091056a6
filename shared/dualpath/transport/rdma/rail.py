"""What moves one link's bytes: its agent, the transfers under way, and when to look after them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from dualpath.memory.device import HOST, Place
from dualpath.transport.rdma.extents import Extent, pair, total
from dualpath.transport.rdma.nixl import Agent, NixlError

SPIN_S = 0.0002
"""So long after the last sign of life a rail in use is looked after in every turn of the event loop."""
REST_S = 0.001
"""How often afterwards. One that is not in use is not looked after at all."""
_BUSY_S = 10e-6
"""An agent that has nothing to do says so in about a microsecond."""


class Flight:
    """A chunk on its way. Until `over`, a NIC may read its source."""

    __slots__ = ("handle", "over")

    def __init__(self) -> None:
        self.handle: Any = None
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True once all bytes are in the peer's memory; False where the rail was closed."""


class Rail:
    """`on_error` hears, once, that NIXL cannot go on; it must call `close`. Raises NixlError where it cannot
    begin."""

    def __init__(
        self,
        name: str,
        config: str,
        memory: Sequence[Extent],
        poller: Poller,
        on_error: Callable[[str], None],
        place: Place = HOST,
    ) -> None:
        self._agent = Agent(name, config, place)
        self._poller = poller
        self._on_error = on_error
        self._flights: set[Flight] = set()
        self._expected = 0
        self._closed = False
        self.written_bytes = 0
        """Into the peer's memory, or on the way there."""
        self.landed = 0
        """Chunks that got there."""
        for extent in memory:
            self._agent.register(extent)

    @property
    def active(self) -> bool:
        """Bytes may be moving, in either direction."""
        return bool(self._flights or self._expected) and not self._closed

    @property
    def flying(self) -> bool:
        """Chunks are under way to the peer's memory."""
        return bool(self._flights)

    def register(self, extent: Extent) -> None:
        self._agent.register(extent)

    def metadata(self) -> bytes:
        return self._agent.metadata()

    def meet(self, metadata: bytes, place: Place = HOST) -> None:
        """Take what the peer says of its agent, whose memory is in `place`. Raises NixlError."""
        self._agent.meet(metadata, place)

    def expect(self, writes: int) -> None:
        """The peer has begun (or ended, where negative) so many writes into this side's memory."""
        self._expected += writes
        self._poller.wake(self)

    def post(self, local: Sequence[Extent], remote: Sequence[Extent]) -> Flight:
        """Begin to write; both are equally long."""
        flight = Flight()
        if not self._closed:
            try:
                flight.handle = self._agent.post(*pair(local, remote))
                self.written_bytes += total(remote)
                self._flights.add(flight)
                self._poller.wake(self)
                return flight
            except NixlError as error:
                self._on_error(str(error))
        self._end(flight, False)
        return flight

    def look(self) -> bool:
        """Let transfers advance; whether any did."""
        try:
            began = perf_counter()
            self._agent.progress()
            advanced = perf_counter() - began > _BUSY_S
            for flight in [f for f in self._flights if self._agent.done(f.handle)]:
                self._agent.release(flight.handle)
                self._end(flight, True)
                self.landed += 1
                advanced = True
        except NixlError as error:
            self._on_error(str(error))
            return False
        return advanced

    def close(self) -> None:
        """Afterwards nothing is read or written through this rail, whatever the peer does."""
        if self._closed:
            return
        self._closed = True
        for flight in self._flights:
            try:
                self._agent.release(flight.handle)
            except NixlError:
                # It goes with the agent.
                continue
        for flight in self._flights:
            flight.handle = None
        self._agent.close()
        for flight in list(self._flights):
            self._end(flight, False)

    def _end(self, flight: Flight, landed: bool) -> None:
        flight.handle = None
        self._flights.discard(flight)
        if not flight.over.done():
            flight.over.set_result(landed)


class Poller:
    """Looks after an endpoint's rails while they are in use: NIXL has nothing that an event loop could wait for.

    With RDMA NICs the writer alone needs it; over TCP or shared memory the target's CPU moves bytes too.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._rails: set[Rail] = set()
        self._next: asyncio.Handle | None = None
        self._spinning = False
        self._alive_at = 0.0

    @property
    def resting(self) -> bool:
        """Nothing is in use, and nothing will be looked after."""
        return self._next is None

    def wake(self, rail: Rail) -> None:
        """Something begins or ends on this rail."""
        self._rails.add(rail)
        loop = asyncio.get_running_loop()
        self._alive_at = loop.time()
        if not self._spinning:
            if self._next is not None:
                self._next.cancel()
            self._spinning = True
            self._next = loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.turns += 1
        loop = asyncio.get_running_loop()
        for rail in tuple(self._rails):
            if rail.active and rail.look():
                self._alive_at = loop.time()
        self._rails = {rail for rail in self._rails if rail.active}
        self._spinning = bool(self._rails) and loop.time() - self._alive_at < SPIN_S
        if self._spinning:
            # Where cores are scarce, the peer may be waiting for this one.
            os.sched_yield()
            self._next = loop.call_soon(self._turn)
        elif self._rails:
            self._next = loop.call_later(REST_S, self._turn)
        else:
            self._next = None
