"""One side's share of a request's read: match under a lease, read, verify, stop at the first hole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.kvstore.api import BlockStore, ReadStatus


@dataclass(frozen=True)
class Share:
    """What came of a share: its first `blocks` blocks are in memory and right."""

    blocks: int = 0
    bytes_read: int = 0
    statuses: tuple[ReadStatus, ...] = ()


class ShareReader:
    """Reads shares and counts the node's read queue in tokens (`read_q`, paper §5)."""

    def __init__(
        self, store: BlockStore, *, block_tokens: int, block_bytes: int, deadline_s: float
    ) -> None:
        self._store = store
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._deadline_s = deadline_s
        self.queue_tokens = 0

    async def read(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> Share:
        """Read the longest stored prefix of `keys` into `into` (a view per key).

        When this returns, raises or has been cancelled, nothing writes into `into` any more.
        """
        if not keys:
            return Share()
        queued = len(keys) * self._block_tokens
        self.queue_tokens += queued
        try:
            match = await self._store.match(keys, lease_s=2 * self._deadline_s)
            statuses: list[ReadStatus] = []
            if match.blocks:
                try:
                    statuses = await self._store.read(
                        keys[: match.blocks], into[: match.blocks], deadline_s=self._deadline_s
                    )
                finally:
                    await self._store.release(match)
        finally:
            self.queue_tokens -= queued
        found = 0
        while found < len(statuses) and statuses[found] is ReadStatus.FOUND:
            found += 1
        arrived = sum(status is ReadStatus.FOUND for status in statuses)
        return Share(found, arrived * self._block_bytes, tuple(statuses))
