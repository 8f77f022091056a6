"""The engines of a node as a group: they step together, and have collectives between them (paper §4, §5).

A mixture-of-experts layer is spread over a group's engines, so a forward belongs to all of them: engines without
work join with an empty batch. A node's engines are in one group; a group does not reach beyond its node.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dualpath.model.api import Backend
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Endpoint
from dualpath.transport.collectives import Group

log = get_logger(__name__)

DEADLINES = 8
"""Of the transfer deadline: how long a collective waits for an engine. Longer than that engine may wait itself, for
a layer's KV to arrive."""


class Steps(ABC):
    """When an engine may begin its next forward."""

    together: bool
    """Other engines take part in each forward: every layer of it must be run, whatever became of its rows."""

    @abstractmethod
    async def begin(self, wake: asyncio.Event | None = None) -> bool:
        """Wait for the begin of a forward; True: run one now. An engine without work gives `wake`: where that is set
        first, this returns False, for the engine to look for work again; else it runs an empty forward."""


class Alone(Steps):
    """An engine that nobody waits for."""

    together = False

    async def begin(self, wake: asyncio.Event | None = None) -> bool:
        if wake is None:
            return True
        await wake.wait()
        return False


class StepGate:
    """Opens for all members at once, when all are at it and at least one has work."""

    def __init__(self, size: int, on_open: Callable[[], None]) -> None:
        """`on_open` is called before the members go on."""
        self._size = size
        self._on_open = on_open
        self._places: dict[int, asyncio.Future[None]] = {}
        self._working: set[int] = set()

    async def begin(self, rank: int, wake: asyncio.Event | None = None) -> bool:
        """See `Steps.begin`."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places[rank] = place
        if wake is None:
            self._working.add(rank)
        try:
            if self._working and len(self._places) == self._size:
                self._open()
            elif wake is None:
                await place
            else:
                await _either(place, wake)
            return place.done()
        finally:
            if self._places.get(rank) is place:
                del self._places[rank]
                self._working.discard(rank)

    def _open(self) -> None:
        self._on_open()
        places, self._places = self._places, {}
        self._working.clear()
        for place in places.values():
            if not place.done():
                place.set_result(None)


async def _either(place: asyncio.Future[None], wake: asyncio.Event) -> None:
    waking = asyncio.create_task(wake.wait())
    both: set[asyncio.Future[Any]] = {place, waking}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waking.cancel()


class EngineGroup:
    """Forms the group of a node's engines, and forms it anew before the next forward when a collective has failed.

    The forward in which it failed has ended for every engine by then. `close` after the engines have stopped.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], backends: Sequence[Backend], deadline_s: float
    ) -> None:
        """`deadline_s`: how long a collective waits for an engine. `endpoints` are those of the engines' CNICs."""
        self._endpoints = endpoints
        self._backends = backends
        self._deadline_s = deadline_s
        self._needed = len(backends) > 1 and all(backend.grouped for backend in backends)
        self._groups: list[Group] = []
        self._gate = StepGate(len(backends), self._mend)
        self._retired: list[asyncio.Task[None]] = []

    def steps(self, engine: int) -> Steps:
        """For engine number `engine` of the node."""
        return _Together(self._gate, engine) if self._needed else Alone()

    def _mend(self) -> None:
        if self._groups and all(group.failure is None for group in self._groups):
            return
        self._retired = [task for task in self._retired if not task.done()]
        for group in self._groups:
            log.warning("group_formed_anew", engine=group.rank, reason=group.failure)
            self._retired.append(asyncio.create_task(group.close()))
        size = len(self._endpoints)
        self._groups = [
            Group(endpoint, rank, size, deadline_s=self._deadline_s)
            for rank, endpoint in enumerate(self._endpoints)
        ]
        seats = [group.seat for group in self._groups]
        for group, backend in zip(self._groups, self._backends, strict=True):
            group.join(seats)
            backend.join(group)

    async def close(self) -> None:
        """Free the group's memory, once the data plane is done with it."""
        closing = [asyncio.create_task(group.close()) for group in self._groups]
        await asyncio.gather(*closing, *self._retired)
        self._groups, self._retired = [], []


class _Together(Steps):
    together = True

    def __init__(self, gate: StepGate, rank: int) -> None:
        self._gate = gate
        self._rank = rank

    async def begin(self, wake: asyncio.Event | None = None) -> bool:
        return await self._gate.begin(self._rank, wake)
