"""H2D and D2H of one engine. Every byte of them passes its CNIC, on the low lane (paper §4)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dualpath.lanes.api import Lane, Nic
from dualpath.memory.device import DeviceBuffer
from dualpath.model.api import Backend
from dualpath.settings import Settings
from dualpath.transport.api import Endpoint
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.rdma.loopback import STAGING_BYTES, Loopback


class DeviceCopies(ABC):
    """Between buffers and their windows. When a method ends, however it does, nothing of it is under way."""

    @abstractmethod
    async def charge(self, nbytes: int) -> None:
        """To be called for each copy between a host buffer and the device, beside the methods below: `nbytes` wait
        for their turns at the CNIC, in both directions. Does nothing where the copies themselves do."""

    @abstractmethod
    async def to_device(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        """Make bytes [start, stop) of the window visible to kernels launched afterwards."""

    @abstractmethod
    async def to_host(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        """Make what the back end wrote to [start, stop), in calls that have returned, readable through the window."""


class DeviceMakes(DeviceCopies):
    """The device's copy engines copy; the CNIC is charged."""

    def __init__(self, cnic: Nic) -> None:
        self._cnic = cnic

    async def charge(self, nbytes: int) -> None:
        await self._cnic.local_copy(Lane.LOW, nbytes)

    async def to_device(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        buffer.to_device(start, stop)

    async def to_host(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        buffer.to_host(start, stop)


class NicMakes(DeviceCopies):
    """The CNIC copies, by writes to itself; raises LinkError where it fails."""

    def __init__(self, loopback: Loopback) -> None:
        self._loopback = loopback

    async def charge(self, nbytes: int) -> None:
        return

    async def to_device(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        await self._loopback.to_device(buffer, start, stop)

    async def to_host(self, buffer: DeviceBuffer, start: int, stop: int) -> None:
        await self._loopback.to_host(buffer, start, stop)


def device_copies(
    settings: Settings, backend: Backend, cnic: Nic, endpoint: Endpoint
) -> DeviceCopies:
    """By the NIC where the settings name it (else none could be said to be the engine's) and the back end has
    memory that it can reach."""
    if isinstance(endpoint, RdmaEndpoint) and settings.rdma_devices:
        staging = backend.stage(STAGING_BYTES)
        if staging is not None:
            return NicMakes(endpoint.loopback(staging))
    return DeviceMakes(cnic)
