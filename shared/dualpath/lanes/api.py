"""What users of a NIC see. Every byte into or out of an engine's device passes its CNIC object."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Literal

from dualpath.wire.types import NicUse

Direction = Literal["tx", "rx"]


class Lane(IntEnum):
    """Virtual lanes: model execution on HIGH, KV-Cache and everything else on LOW."""

    HIGH = 0
    LOW = 1


class Priority(IntEnum):
    """Order inside a lane: small messages (credits, completions) overtake bulk; FIFO within each."""

    MESSAGE = 0
    BULK = 1


class Nic(ABC):
    """One NIC of this process, full duplex.

    Grants are per chunk of at most `quantum_bytes`: larger ones raise ValueError. The pieces of a
    scatter/gather list are one chunk together: what counts is their bytes.
    """

    name: str
    quantum_bytes: int

    @abstractmethod
    async def send(self, lane: Lane, nbytes: int, priority: Priority = Priority.BULK) -> None:
        """Return when this chunk's turn to leave has come. Cancelling while it waits takes it out of the queue."""

    @abstractmethod
    def try_send(self, lane: Lane, nbytes: int) -> bool:
        """As `send`, for a chunk that would not have to wait; False, and nothing is done, for any other, and for all
        where a bandwidth is emulated: those queue with `send`."""

    @abstractmethod
    async def receive(self, lane: Lane, nbytes: int) -> None:
        """Charge a chunk that arrived; returns when the emulated port could have taken it."""

    @abstractmethod
    def try_receive(self, lane: Lane, nbytes: int) -> bool:
        """As `receive`, for a chunk that would not have to wait; False as `try_send`, and nothing is charged."""

    @abstractmethod
    async def local_copy(self, lane: Lane, nbytes: int) -> None:
        """Charge an H2D or D2H of any size, chunk by chunk, to both directions (a loopback RDMA write)."""

    @abstractmethod
    def charge(self, lane: Lane, direction: Direction, nbytes: int) -> None:
        """Pace bytes that go without asking, headers and acknowledgements: later chunks wait for them.

        They are not counted: what is counted is payload.
        """

    @abstractmethod
    def moved(self) -> dict[tuple[Lane, Direction], int]:
        """Bytes of payload since start by lane and direction."""

    @abstractmethod
    def uses(self) -> list[NicUse]:
        """What is to be seen of each lane and direction, for metrics and status."""

    @abstractmethod
    def close(self) -> None:
        """Free the NIC's timers. Nothing may be under way, nor be asked any more."""
