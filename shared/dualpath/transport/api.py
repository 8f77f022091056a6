"""The transport that engines, nodes and shards use; TCP is one implementation, RDMA another.

A process registers memory regions; a peer that knows a region's key writes into it. A write is done when
the peer has acknowledged that all bytes landed; its immediate data reaches the region's owner. Messages
are small, ordered after nothing, and acknowledged once the peer's handler has taken them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dualpath.lanes.api import Lane
from dualpath.memory.file_part import FilePart
from dualpath.memory.shared import SharedMemory
from dualpath.wire.types import Address


class TransportError(Exception):
    """Base; the text names the peer and what to look at."""


class LinkError(TransportError):
    """The link to the peer could not be made or was lost. What was under way may or may not have landed."""


class Revoked(TransportError):
    """The peer no longer (or never) opens this key: the request was cancelled there. The link is fine."""


class PeerRefused(TransportError):
    """The handshake failed: another protocol version, secret or fingerprint, or a dead incarnation."""


class MessageRefused(TransportError):
    """Raised by a handler: it takes no such message (any more), as happens where an end crosses it on its way."""


class Region(Protocol):
    """Memory that peers may write to, addressed from 0 to `nbytes`."""

    @property
    def nbytes(self) -> int: ...

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        """The writable pieces of [offset, offset + nbytes), in order. Bounds were checked before."""
        ...

    def on_write(self, imm: int) -> None:
        """A whole write has landed. Called on the event loop; must not block or raise."""
        ...


class Followed(Region):
    """One that is told of a write's bytes before the write has ended, where the transport sees them come."""

    @abstractmethod
    def on_bytes(self, offset: int, nbytes: int) -> None:
        """[offset, offset + nbytes) has come, and the rest of a frame that begins there is on its way. Called as
        often as more is there; must not block or raise. A write that ends here has not landed yet."""


MessageHandler = Callable[[Address, bytes], Awaitable[None]]
"""Called for each message with the sender's address. Messages of one link arrive in order, one at a
time per link: the handler should be quick, and hand long work to its own tasks. What it raises is logged
with the peer's name (MessageRefused as a sentence, all else as a failure) and answered as a refusal; the
link stays. But for MalformedMessage: who sends what is no message of this cluster loses its link."""

Buffer = bytes | bytearray | memoryview
Source = Sequence[Buffer | FilePart]
"""What a write is made of: pieces of memory, or, where the endpoint `sends_files`, parts of files; not of both."""


class Endpoint(ABC):
    """A NIC's place on the network: listens, dials, sends, receives. One event loop owns it."""

    @property
    @abstractmethod
    def address(self) -> Address:
        """Where peers reach this endpoint; valid once started."""

    @abstractmethod
    async def start(self, on_message: MessageHandler) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Close every link; whatever is under way ends with LinkError."""

    @property
    def sends_files(self) -> bool:
        """Whether sources of writes may be parts of files. Where one cannot be read, the link is lost."""
        return False

    def pin(self, memory: memoryview, shared: SharedMemory | None = None) -> None:
        """Say that regions and sources will lie in this memory for as long as the endpoint lives. Never needed;
        transports that register memory with a NIC do so once, and then move bytes there without a copy. `shared` is
        what `memory` is the view of, where processes of this host may read it; its descriptor may be closed."""
        return

    @abstractmethod
    def register(self, region: Region) -> int:
        """Open `region` to peers; the key is random, 63 bits, and never used again by this process."""

    @abstractmethod
    async def revoke(self, key: int) -> None:
        """Close a region. When this returns, nothing writes into its memory any more: this, and no message,
        is the proof that it may be reused. Links that do not stop within the transfer deadline are cut
        (over TCP none has to: this returns at once). Revoking an unknown key does nothing."""

    @abstractmethod
    async def write(
        self,
        peer: Address,
        key: int,
        offset: int,
        source: Source,
        *,
        lane: Lane = Lane.LOW,
        imm: int = 0,
    ) -> None:
        """Write the pieces of `source`, end to end, to [offset, …) of the peer's region.

        An Address with an empty incarnation means whichever life of the peer listens there. `imm` has 64 bits.
        Writes that are under way at the same time may land in any order, and frame by frame.

        Returns when the peer has acknowledged. Raises Revoked, LinkError, PeerRefused. Whether it returns,
        raises or is cancelled: afterwards `source` is not read any more. But for files: of a write that has not
        returned, the kernel may still send what it took, as the file is then, so who receives files has to verify.
        """

    @abstractmethod
    async def send(self, peer: Address, message: bytes, *, lane: Lane = Lane.LOW) -> None:
        """Deliver one message (at most MAX_MESSAGE_BYTES); returns when the peer's handler has taken it.
        Raises LinkError (then it may or may not have arrived), PeerRefused, TransportError where the
        handler refused it."""
