"""What a node and the scheduler say to each other: registration, fetches, reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dualpath.blocks import Phase
from dualpath.bus.errors import BusError, BusTimeout
from dualpath.bus.nats_bus import Bus
from dualpath.settings import Settings
from dualpath.telemetry.logs import get_logger
from dualpath.wire import control
from dualpath.wire.codec import Message
from dualpath.wire.types import Attempt

log = get_logger(__name__)

_SETTLE_S = 0.005
"""Changes of load within this time go out in one fetch."""


class RegistrationRefused(RuntimeError):
    """The scheduler does not take this node; the text is its sentence."""


class Membership:
    """Keeps the scheduler told of one node. `register`, then `run`.

    `registration` and `fetch`, which gets the fetch's number, say how the node is at the moment; `own` runs a task
    for as long as the node lives.
    """

    def __init__(
        self,
        bus: Bus,
        node_id: str,
        settings: Settings,
        *,
        registration: Callable[[], control.RegisterNode],
        fetch: Callable[[int], control.Fetch],
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.changed = asyncio.Event()
        """To be set when the load has changed: the next fetch goes out at once."""
        self._bus = bus
        self._node_id = node_id
        self._interval_s = settings.fetch_interval_s
        self._tell_deadline_s = settings.request_deadline_s
        self._registration = registration
        self._fetch = fetch
        self._own = own
        self._leaving = False
        self._reports: dict[Attempt, asyncio.Task[None]] = {}

    async def register(self) -> None:
        """Until the scheduler, for which it waits as long as it takes, has the node. Raises RegistrationRefused."""
        message = self._registration()
        while True:
            try:
                answer = await self._bus.request_until_answered(
                    control.SCHEDULER, message, deadline_s=30.0
                )
            except BusError as error:
                log.warning("not registered yet", node=self._node_id, reason=str(error))
                continue
            if isinstance(answer, control.Refused):
                if answer.code == "incompatible":
                    raise RegistrationRefused(answer.reason)
                log.warning("registration refused", node=self._node_id, reason=answer.reason)
                await asyncio.sleep(self._interval_s)
                continue
            log.info("registered", node=self._node_id, role=message.role)
            return

    async def run(self) -> None:
        """Fetch when the load has changed, and every `fetch_interval_s` at least; ends by cancellation, or when the
        node has left.
        Registers anew where the scheduler has forgotten the node: raises as `register`."""
        number = 0
        while True:
            number += 1
            self.changed.clear()
            try:
                answer = await self._bus.request(
                    control.SCHEDULER, self._fetch(number), timeout_s=1.0
                )
            except BusError as error:
                log.debug("fetch unanswered", node=self._node_id, reason=str(error))
                await asyncio.sleep(self._interval_s)
                continue
            if isinstance(answer, control.Refused):
                log.warning(
                    "fetch refused", node=self._node_id, code=answer.code, reason=answer.reason
                )
                if answer.code == "unknown":
                    if self._leaving:
                        return
                    await self.register()
                else:
                    await asyncio.sleep(self._interval_s)
                continue
            await asyncio.sleep(_SETTLE_S)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def leave(self, holds: Callable[[], bool]) -> None:
        """Get nothing new from now on; return when the node holds nothing more (`holds`), and the scheduler agrees.
        At once where there is no scheduler: it will find out. One that is slow is asked again while anything is held.
        """
        self._leaving = True
        message = control.LeaveNode(self._node_id, self._registration().incarnation)
        agreed = False
        while not agreed or holds():
            if not agreed:
                try:
                    answer = await self._bus.request(control.SCHEDULER, message, timeout_s=1.0)
                except BusError as error:
                    if isinstance(error, BusTimeout) and holds():
                        continue
                    log.warning("left without a word", node=self._node_id, reason=str(error))
                    return
                agreed = not (isinstance(answer, control.Refused) and answer.code == "busy")
            if not agreed or holds():
                await asyncio.sleep(self._interval_s)
        log.info("left", node=self._node_id)

    async def tell(self, message: Message) -> None:
        """Repeat until the scheduler has answered; give up when it stays away for long (it will learn the
        same from fetches, or has forgotten the attempt)."""
        try:
            await self._bus.request_until_answered(
                control.SCHEDULER, message, deadline_s=self._tell_deadline_s
            )
        except BusError as error:
            log.warning("scheduler not told", node=self._node_id, reason=str(error))

    def report(self, attempt: Attempt, phase: Phase) -> None:
        """Tell of a change of phase, in order per attempt, without waiting for it."""
        before = self._reports.get(attempt)

        async def tell() -> None:
            if before is not None:
                await asyncio.wait({before})
            await self.tell(control.PhaseChange(attempt, self._node_id, phase.value))
            if self._reports.get(attempt) is task:
                del self._reports[attempt]

        task = self._own(tell())
        self._reports[attempt] = task

    async def reported(self, attempt: Attempt) -> None:
        """Wait, but not for long, until the attempt's reports are answered: a scheduler that is away does
        not hold up the data plane."""
        pending = self._reports.get(attempt)
        if pending is not None:
            await asyncio.wait({pending}, timeout=1.0)
