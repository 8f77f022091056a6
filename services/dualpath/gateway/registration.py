"""The gateway's heartbeat: tells the scheduler that it is there, and notices when the scheduler was restarted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from dualpath.bus import Bus, BusError
from dualpath.telemetry.logs import get_logger
from dualpath.wire.codec import PROTOCOL_VERSION
from dualpath.wire.control import SCHEDULER, Refused, Registered, RegisterGateway

log = get_logger(__name__)

BEAT_S = 1.0
SILENT_S = 5.0
"""A scheduler that has not answered for so long counts as away."""


class Registration:
    """`run` it for as long as the gateway lives. `on_forgotten` is called when the scheduler has forgotten
    everything that it was told: it was restarted, or has given this gateway up.

    `lost_s` is how long the scheduler waits for a gateway.
    """

    def __init__(
        self,
        bus: Bus,
        gateway_id: str,
        fingerprint: str,
        *,
        lost_s: float,
        on_forgotten: Callable[[], None],
    ) -> None:
        self.refusal: str | None = None
        """Why the scheduler does not take this gateway, in its words."""
        self._bus = bus
        self._message = RegisterGateway(
            gateway_id=gateway_id,
            incarnation=secrets.token_hex(8),
            protocol=PROTOCOL_VERSION,
            fingerprint=fingerprint,
        )
        self._lost_s = lost_s
        self._on_forgotten = on_forgotten
        self._scheduler: str | None = None
        self._heard_s = float("-inf")

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self.beat()
            slept_s = clock()
            await asyncio.sleep(BEAT_S)
            slept_s = clock() - slept_s
            if slept_s - BEAT_S > self._lost_s:
                # This process was stopped: to the scheduler it was dead.
                log.warning("the gateway stood still", seconds=round(slept_s, 1))
                await self.beat()
                self._on_forgotten()

    def scheduler_answers(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard_s < SILENT_S

    async def beat(self) -> None:
        """Register once more, now."""
        try:
            answer = await self._bus.request(SCHEDULER, self._message, timeout_s=BEAT_S)
        except BusError as error:
            log.debug("heartbeat unanswered", reason=str(error))
            return
        self._heard_s = asyncio.get_running_loop().time()
        match answer:
            case Registered():
                self._registered(answer.scheduler_incarnation)
            case Refused():
                if self.refusal != answer.reason:
                    log.error("the scheduler refuses this gateway", reason=answer.reason)
                self.refusal = answer.reason

    def _registered(self, scheduler: str) -> None:
        self.refusal = None
        before, self._scheduler = self._scheduler, scheduler
        if before is None:
            log.info("registered", gateway_id=self._message.gateway_id)
        elif before != scheduler:
            log.warning("the scheduler was restarted; unfinished requests are submitted again")
            self._on_forgotten()
