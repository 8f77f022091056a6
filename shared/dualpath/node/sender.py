"""Sends tokens to gateways: each node its own, in order, and again where they were lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from dualpath.bus.errors import BusError
from dualpath.bus.nats_bus import Bus
from dualpath.node.stream import TokenStreams, batches
from dualpath.telemetry.logs import get_logger
from dualpath.wire.control import TokenEvent, TokenEvents, gateway_subject

log = get_logger(__name__)

RESEND_S = 1.0


async def publish_tokens(
    bus: Bus, node_id: str, gateway_id: str, events: Sequence[TokenEvent]
) -> None:
    """Send events once, in messages of bounded size; what the bus does not take is lost."""
    for batch in batches(events):
        try:
            await bus.publish(gateway_subject(gateway_id), TokenEvents(node_id, batch))
        except BusError as error:
            # The bus itself tells of its outage, once; this comes with every step meanwhile.
            log.debug("tokens not sent", gateway=gateway_id, reason=str(error))


class TokenSender:
    """The streams that a decode node owns, on their way. `run` is the task that sends again."""

    def __init__(self, bus: Bus, node_id: str, *, node_lost_s: float) -> None:
        # After half of that the scheduler has taken a silent gateway for lost: should it come back, it submits anew.
        self.streams = TokenStreams(resend_s=RESEND_S, gone_s=4 * node_lost_s)
        self._connected_s = time.monotonic()
        self._bus = bus
        self._node_id = node_id
        # What is sent must leave in order: after a gap the gateway takes nothing.
        self._sending = asyncio.Lock()

    async def send_fresh(self) -> None:
        """Send what has not been sent yet."""
        async with self._sending:
            await self._send(self.streams.fresh(time.monotonic()))

    async def run(self) -> None:
        """Send again what stays unacknowledged; ends only by cancellation."""
        while True:
            await asyncio.sleep(RESEND_S / 2)
            if not self._bus.connected:
                self._connected_s = time.monotonic()
            async with self._sending:
                await self._send(self.streams.stale(time.monotonic(), self._connected_s))
            # Of a request that no longer decodes, what follows a piece that was lost.
            await self.send_fresh()

    async def _send(self, events: dict[str, list[TokenEvent]]) -> None:
        for gateway_id, items in events.items():
            await publish_tokens(self._bus, self._node_id, gateway_id, items)
