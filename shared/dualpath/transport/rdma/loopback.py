"""H2D and D2H as writes of a CNIC to itself (paper §4): so the NIC's own QoS holds for them too."""

from __future__ import annotations

import asyncio
from itertools import count

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.arena import Arena
from dualpath.memory.device import HOST, DeviceBuffer, Staging
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import LinkError
from dualpath.transport.rdma.extents import Extent
from dualpath.transport.rdma.memory import ROOM_BYTES, extent_of
from dualpath.transport.rdma.nixl import NixlError
from dualpath.transport.rdma.rail import Flight, Poller, Rail

log = get_logger(__name__)

STAGING_ROOMS = 16
STAGING_BYTES = STAGING_ROOMS * ROOM_BYTES
"""What `Loopback` needs of a device for its staging: each room has one of the host beside it."""


class Loopback:
    """Copies between the windows of an engine's buffers and the device, through rooms that are registered once.

    Two agents, one for each side: to an agent's own memory UCX would take the shortest way, past the NIC. Rooms,
    because NIXL cannot be told that an address has been registered anew, as those of buffers are all the time.
    Every chunk asks the NIC on the way out and on the way in, both on the low lane. A copy moves one chunk at a
    time; those of several layers and requests overlap. All methods raise LinkError where NIXL fails or a chunk
    takes longer than `deadline_s`: the agents are destroyed then, and the next copy makes new ones.
    """

    def __init__(
        self, name: str, config: str, staging: Staging, nic: Nic, poller: Poller, deadline_s: float
    ) -> None:
        if staging.nbytes != STAGING_BYTES:
            raise ValueError(f"the staging has {staging.nbytes} bytes, not {STAGING_BYTES}")
        self.config = config
        self._name = name
        self._staging = staging
        self._nic = nic
        self._poller = poller
        self._deadline_s = deadline_s
        self._rooms = Arena(f"{name}.loopback", ROOM_BYTES, STAGING_ROOMS)
        self._rails: tuple[Rail, Rail] | None = None
        """The host's and the device's."""
        self._numbers = count(1)
        self._reason = ""

    @property
    def taken(self) -> int:
        """Rooms that are in use."""
        return self._rooms.pool_use().used

    async def to_device(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        """Make bytes [start, stop) of `wire` visible to kernels launched after this has returned. When this ends,
        however it does, nothing of it is under way any more."""
        for at, nbytes in self._chunks(start, stop):
            (room,) = await self._rooms.acquire(1)
            try:
                self._rooms.view(room)[:nbytes] = buffer.wire[at : at + nbytes]
                await self._write(room, nbytes, to_device=True)
                await self._staging.into(buffer, at, room * ROOM_BYTES, nbytes)
            finally:
                self._rooms.release([room])

    async def to_host(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        """Make bytes [start, stop) readable through `wire`; the call that wrote them has returned. When this ends,
        however it does, nothing of it is under way any more."""
        for at, nbytes in self._chunks(start, stop):
            (room,) = await self._rooms.acquire(1)
            try:
                await self._staging.out_of(buffer, at, room * ROOM_BYTES, nbytes)
                await self._write(room, nbytes, to_device=False)
                buffer.wire[at : at + nbytes] = self._rooms.view(room)[:nbytes]
            finally:
                self._rooms.release([room])

    def _chunks(self, start: int, stop: int) -> list[tuple[int, int]]:
        size = min(self._nic.quantum_bytes, ROOM_BYTES)
        return [(at, min(size, stop - at)) for at in range(start, stop, size)]

    async def _write(self, room: int, nbytes: int, *, to_device: bool) -> None:
        host, device = self._open()
        host_side: Extent = (extent_of(self._rooms.view(room))[0], nbytes)
        device_side: Extent = (self._staging.address + room * ROOM_BYTES, nbytes)
        await self._nic.send(Lane.LOW, nbytes)
        # Looked after on both sides: without an RDMA NIC the target's agent moves bytes too.
        target = device if to_device else host
        target.expect(1)
        try:
            if to_device:
                flight = host.post([host_side], [device_side])
            else:
                flight = device.post([device_side], [host_side])
            landed = await self._over(flight)
        finally:
            target.expect(-1)
        if not landed:
            raise LinkError(f"a copy through {self._name} itself failed: {self._reason}")
        await self._nic.receive(Lane.LOW, nbytes)

    async def _over(self, flight: Flight) -> bool:
        """Whether it has landed. Not even a cancelled caller goes on while a NIC reads or writes its rooms."""
        loop = asyncio.get_running_loop()
        deadline, cancelled = loop.time() + self._deadline_s, False
        while not flight.over.done():
            left = deadline - loop.time()
            if left <= 0:
                self._fail(f"a chunk took longer than {self._deadline_s:g} s")
                break
            try:
                await asyncio.wait({flight.over}, timeout=left)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return flight.over.result()

    # ── the agents ─────────────────────────────────────────────────────────────────────────────────
    def _open(self) -> tuple[Rail, Rail]:
        if self._rails is not None:
            return self._rails
        name, place = f"{self._name}.loopback{next(self._numbers)}", self._staging.place
        rooms = extent_of(self._rooms.memory)
        staging: Extent = (self._staging.address, self._staging.nbytes)
        made: list[Rail] = []
        try:
            for side, extent, where in (("host", rooms, HOST), ("device", staging, place)):
                full = f"{name}.{side}"
                made.append(Rail(full, self.config, [extent], self._poller, self._fail, where))
            host, device = made
            host.meet(device.metadata(), place)
            device.meet(host.metadata(), HOST)
        except NixlError as error:
            for rail in made:
                rail.close()
            raise LinkError(
                f"{self._name} cannot copy to and from its device by RDMA ({error}); is the NIC allowed to "
                "reach the device's memory (GPUDirect)? `UCX_LOG_LEVEL=info` says more"
            ) from error
        self._rails = host, device
        log.info("loopback_up", nic=self._name, ucx=self.config)
        return self._rails

    def _fail(self, reason: str) -> None:
        log.warning("loopback_failed", nic=self._name, reason=reason)
        self._reason = reason
        self._drop()

    def _drop(self) -> None:
        rails, self._rails = self._rails, None
        for rail in rails or ():
            rail.close()

    def close(self) -> None:
        """Destroy the agents; copies under way fail. Then the staging can be given back."""
        self._reason = "it was closed"
        self._drop()
        self._rooms.close()
        self._staging.close()
