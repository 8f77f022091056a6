"""A link whose larger writes go by RDMA."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dualpath.lanes.api import Lane, Nic
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import LinkError
from dualpath.transport.frames import Header, Kind, MalformedFrame
from dualpath.transport.link import Link
from dualpath.transport.patience import Patience
from dualpath.transport.rdma.asked import AskedWrites
from dualpath.transport.rdma.extents import Extent
from dualpath.transport.rdma.memory import Pinned, Rooms
from dualpath.transport.rdma.nixl import NixlError
from dualpath.transport.rdma.rail import Poller, Rail
from dualpath.transport.rdma.writing import RdmaSender
from dualpath.transport.sending import Sender

log = get_logger(__name__)


DRAIN_DEADLINES = 6
"""Of the transfer deadline: for so long a revoked write may go on where NICs are slow."""


@dataclass(frozen=True)
class Fabric:
    """What the links of one endpoint and lane share."""

    pinned: Pinned
    outgoing: Rooms
    incoming: Rooms
    poller: Poller
    config: str
    """UCX's, for the agents."""
    spawn: Callable[[Coroutine[Any, Any, None]], object]


class RdmaLink(Link):
    """The agent is made when the first write is, from either side, and destroyed with the link."""

    def __init__(self, *args: Any, fabric: Fabric, name: str, **options: Any) -> None:
        """`name` is of this side's agent: nobody else's that the peer knows."""
        self._fabric = fabric
        self._name = name
        self._rail: Rail | None = None
        self._attached: asyncio.Future[Rail] = asyncio.get_running_loop().create_future()
        self._rail_patience = Patience(options["deadline_s"])
        super().__init__(*args, **options)
        self._asked = AskedWrites(
            regions=options["regions"],
            pinned=fabric.pinned,
            rooms=fabric.incoming,
            nic=options["nic"],
            lane=self.lane,
            control=self._outbox.control,
            spawn=fabric.spawn,
        )

    def _new_sender(self, nic: Nic, lane: Lane) -> Sender:
        return RdmaSender(
            self._outbox,
            nic,
            lane,
            pinned=self._fabric.pinned,
            rooms=self._fabric.outgoing,
            attach=self._attach,
        )

    # ── life ───────────────────────────────────────────────────────────────────────────────────────
    def fail(self, reason: str, *, graceful: bool = False) -> None:
        """As of any link; afterwards no NIC reads or writes this process's memory for it."""
        if self.lost is not None:
            return
        super().fail(reason, graceful=graceful)
        if self._rail is not None:
            self._rail.close()
            log.info("rdma_down", peer=str(self), written_bytes=self._rail.written_bytes)
        self._asked.close()
        if not self._attached.done():
            self._attached.set_exception(LinkError(f"the link to {self} was lost: {reason}"))
            # Nobody may be waiting for it.
            self._attached.exception()

    def drop(self, key: int) -> None:
        super().drop(key)
        self._asked.drop(key)

    async def drained(self, key: int) -> None:
        """Return once the peer cannot write for a revoked key any more: it says so, or the link is cut.

        What it is told, or says, may lie behind payload that a slow NIC on either side holds up. That time is not
        the peer's, but what it holds is not waited for beyond DRAIN_DEADLINES.
        """
        patience, began_s = Patience(self._deadline_s), self._loop.time()
        while writing := [end for end in self._asked.writing(key) if not end.done()]:
            now_s, held_ups = self._loop.time(), self._receiver.held_ups
            if (
                patience.exhausted(now_s, owes=not self._receiver.busy, signs=held_ups)
                or now_s - began_s > DRAIN_DEADLINES * self._deadline_s
            ):
                log.warning("link_cut", peer=str(self), reason="a revoked write goes on")
                self.fail(f"it did not stop writing within {now_s - began_s:.3g} s of being told")
                return
            await asyncio.wait(writing, timeout=self._heartbeat_s)
            if self._loop.time() - now_s > 2 * self._heartbeat_s:
                # This process stood still itself, see `_watch`.
                patience.renew()

    @property
    def _busy(self) -> bool:
        return super()._busy or self._asked.busy

    @property
    def _owed(self) -> bool:
        attaching = self._rail is not None and not self._attached.done()
        return super()._owed or attaching

    def _stalled(self) -> bool:
        """No chunk that is under way waits for anything of the peer's but that it lets the bytes in."""
        rail = self._rail
        flying = rail is not None and rail.flying
        landed = 0 if rail is None else rail.landed
        stuck = self._rail_patience.exhausted(self._loop.time(), owes=flying, signs=landed)
        return super()._stalled() or stuck

    def _forgive(self) -> None:
        super()._forgive()
        self._rail_patience.renew()

    # ── the agents ─────────────────────────────────────────────────────────────────────────────────
    async def _attach(self) -> Rail:
        """The rail, once it leads to the peer's agent."""
        self._open_rail()
        return await asyncio.shield(self._attached)

    def _open_rail(self) -> None:
        """Make this side's agent, and tell the peer of it."""
        if self._rail is not None or self.lost is not None:
            return
        fabric = self._fabric
        try:
            self._rail = Rail(
                self._name, fabric.config, fabric.pinned.ranges, fabric.poller, self._rail_failed
            )
            self._tell(self._rail)
        except NixlError as error:
            self._rail_failed(str(error))

    def _rail_failed(self, reason: str) -> None:
        log.warning("rdma_failed", peer=str(self), reason=reason)
        self.fail(f"RDMA failed: {reason}")

    def _tell(self, rail: Rail) -> None:
        metadata = rail.metadata()
        self._outbox.control(Header(Kind.ATTACH, length=len(metadata)).pack() + metadata)

    def pin(self, extent: Extent) -> None:
        """More memory of this process may be used from now on."""
        if self._rail is None or self.lost is not None:
            return
        try:
            self._rail.register(extent)
            self._tell(self._rail)
        except NixlError as error:
            self._rail_failed(str(error))

    def _transfer(self, header: Header, payload: bytes) -> None:
        if header.kind is Kind.ATTACH:
            self._meet(payload)
        elif header.kind is Kind.ASK:
            self._asked.asked(header)
        elif header.kind is Kind.LANDED:
            self._asked.landed(header)
        elif header.kind is Kind.STOPPED:
            self._asked.stopped(header)
        elif isinstance(self._sender, RdmaSender):
            self._sender.granted(header, payload)

    def _meet(self, metadata: bytes) -> None:
        self._open_rail()
        if self._rail is None or self.lost is not None:
            return
        try:
            self._rail.meet(metadata)
        except NixlError as error:
            raise MalformedFrame(f"an ATTACH that cannot be used: {error}") from error
        if not self._attached.done():
            self._asked.serve(self._rail)
            self._attached.set_result(self._rail)
            log.info("rdma_up", peer=str(self), lane=self.lane.name, ucx=self._fabric.config)
