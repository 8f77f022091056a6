"""A device's memory (HBM) as the nodes see it, without naming torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True)
class Place:
    """Whose memory it is, as NICs are told: the host's, or that of accelerator number `device`."""

    kind: Literal["DRAM", "VRAM"]
    device: int = 0


HOST = Place("DRAM")


class Staging(ABC):
    """Memory on a device that a NIC writes to and reads from: it never moves, as the buffers do.

    Where a back end has one, copies go through it, and its buffers' `to_device` and `to_host` make none. What
    the back end has written can be copied once the call that wrote it has returned. Both copies below stay on the
    device, and when they return, also by cancellation or an error, neither memory is read or written for them.
    """

    place: Place
    address: int
    nbytes: int

    @abstractmethod
    async def into(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        """Copy the staging's bytes from `at` on to `start` of `buffer`; kernels launched afterwards see them."""

    @abstractmethod
    async def out_of(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        """Copy from `start` of `buffer` to `at` of the staging."""

    @abstractmethod
    def close(self) -> None:
        """Give the memory back. No NIC may reach it any more."""
