"""The estimate of how much of a prompt is stored: for the scheduler's policies, without a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dualpath.blocks import KVGeometry
from dualpath.kvstore.api import PrefixMatch
from dualpath.kvstore.making import make_store
from dualpath.lanes.nic import PacedNic
from dualpath.model.spec import ModelSpec
from dualpath.settings import Settings
from dualpath.telemetry.logs import get_logger
from dualpath.transport.sockets import Marks
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls

log = get_logger(__name__)

ESTIMATE_S = 1.5
"""A request waits no longer for it. Generous: a miss costs a whole prefill, and a shard that does not answer
is waited for once only."""


class Matcher(Protocol):
    async def match(self, keys: Sequence[bytes]) -> PrefixMatch: ...


class PrefixEstimate:
    """Asks the store. Where it does not answer in time the estimate is zero, never an error: the nodes look again."""

    def __init__(self, geometry: KVGeometry, store: Matcher | None) -> None:
        self._geometry = geometry
        self._store = store

    async def hit_blocks(self, keys: Sequence[bytes], prompt_tokens: int) -> int:
        """Blocks of the prompt that seem to be stored, of those that may count as hits."""
        limit = min(self._geometry.max_hit_blocks(prompt_tokens), len(keys))
        if self._store is None or limit == 0:
            return 0
        try:
            async with asyncio.timeout(ESTIMATE_S):
                match = await self._store.match(keys[:limit])
        except TimeoutError:
            log.warning("prefix estimate took too long", limit_s=ESTIMATE_S)
            return 0
        return min(match.blocks, limit)


class StoreConnection:
    """The gateway's own way to the store. It only asks: no KV passes, so its NIC is not paced."""

    def __init__(self, settings: Settings, spec: ModelSpec, gateway_id: str) -> None:
        self._nic = PacedNic(f"{gateway_id}.snic")
        self._endpoint = TcpEndpoint(
            f"{gateway_id}.snic",
            host=settings.host,
            announce=settings.announced_host,
            nic=self._nic,
            secret=(settings.secret or "").encode(),
            fingerprint=spec.fingerprint,
            transfer_deadline_s=settings.transfer_deadline_s,
            tls=Tls.of(settings),
            marks=Marks.of(settings),
        )
        self._dials = settings.store == "shards"
        self.store = make_store(
            settings,
            fingerprint=spec.fingerprint,
            block_bytes=spec.geometry.full_block_bytes,
            endpoint=self._endpoint,
            nic=self._nic,
            keeps=False,
            # Within the estimate's own time, so that a shard that hangs is found out and not asked again.
            match_deadline_s=0.8 * ESTIMATE_S,
        )

    async def start(self) -> None:
        """Listen, and dial the shards now rather than with the first request."""
        await self._endpoint.start(self.store.on_message)
        await self.store.start()
        if self._dials:
            await self.store.stat()

    async def close(self) -> None:
        await self.store.close()
        await self._endpoint.close()
