"""A device's memory (HBM) as the nodes see it, without naming torch."""

from __future__ import annotations

from abc import ABC, abstractmethod


class DeviceBuffer(ABC):
    """Bytes on a device, with a window that the transport can read and write.

    On a CPU `wire` is the buffer itself and the two copies do nothing. On an accelerator `wire` is pinned
    host memory of the same size, and the copies move a range between the two.
    """

    nbytes: int

    @property
    @abstractmethod
    def wire(self) -> memoryview:
        """Writable, contiguous, of format "B" and length `nbytes`."""

    @abstractmethod
    def to_device(self, start: int, stop: int) -> None:
        """Make bytes [start, stop) of `wire` visible to kernels launched afterwards."""

    @abstractmethod
    def to_host(self, start: int, stop: int) -> None:
        """Make what the device wrote to [start, stop) readable through `wire`; returns when it is."""

    @abstractmethod
    def free(self) -> None:
        """Give the memory back; the buffer must not be used afterwards."""
