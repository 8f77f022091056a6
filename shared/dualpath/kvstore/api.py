"""The interface of the store. Its back ends: shards over the transport (`dualpath.kvstore.shards`), a directory that
nodes mount (`dualpath.kvstore.directory`), an object store (`dualpath.kvstore.objects`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from dualpath.wire import store as wire
from dualpath.wire.codec import MalformedMessage
from dualpath.wire.types import Address


class ReadStatus(IntEnum):
    """What became of one block. Three different kinds of no: never taken for each other."""

    FOUND = wire.FOUND
    ABSENT = wire.ABSENT
    CORRUPT = wire.CORRUPT
    FAILED = wire.FAILED


class WriteStatus(IntEnum):
    STORED = wire.STORED
    EXISTS = wire.EXISTS
    NOT_STORED = wire.NOT_STORED


@dataclass(frozen=True)
class PrefixMatch:
    """`blocks` of the asked keys, from the first on and without a hole, are stored. `lease` is opaque."""

    blocks: int
    lease: object | None = None


@dataclass(frozen=True)
class StoreStat:
    blocks: int
    nbytes: int


class BlockStore(ABC):
    """One namespace of the store: blocks of one size and fingerprint."""

    async def start(self) -> None:  # noqa: B027
        """Begin what goes on beside the calls; the owner awaits it first, and once."""

    async def on_message(self, peer: Address, payload: bytes) -> None:
        """Handler of what peers say at the node's SNIC endpoint. Raises MalformedMessage for what is no answer."""
        raise MalformedMessage(f"{peer.endpoint_id} says something, but this store has no shards")

    @abstractmethod
    async def match(self, keys: Sequence[bytes], *, lease_s: float = 0.0) -> PrefixMatch:
        """The longest stored prefix of `keys`, one round trip per shard, all at once. An unreachable shard
        holds nothing. With `lease_s` what matched is not evicted for so long, or until `release`."""

    @abstractmethod
    async def release(self, match: PrefixMatch) -> None: ...

    @abstractmethod
    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], *, deadline_s: float
    ) -> list[ReadStatus]:
        """Read Full Blocks straight into `into` (each of the block's size), over all shards in parallel.

        Each block's checksum is verified here; FOUND means: there, and right. Never raises for a shard's
        failure (FAILED says it). When this returns, raises or has been cancelled, nothing writes into `into`
        any more.
        """

    @abstractmethod
    async def write(
        self,
        keys: Sequence[bytes],
        blocks: Sequence[memoryview],
        *,
        deadline_s: float,
        depth: int = 0,
    ) -> list[WriteStatus]:
        """Store blocks of one chain, `depth` full blocks before them; one that exists is a success. Afterwards
        `blocks` are not read any more."""

    @abstractmethod
    async def stat(self) -> StoreStat: ...

    def events(self) -> dict[str, int]:
        """What happened beside the calls, counted by name; for the metrics."""
        return {}

    @abstractmethod
    async def close(self) -> None: ...
