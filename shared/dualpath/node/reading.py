"""One side's share of a request's read: match under a lease, read, verify, stop at the first hole."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from dualpath.kvstore.api import BlockStore, ReadStatus


@dataclass(frozen=True)
class Share:
    """What came of a share: its first `blocks` blocks are in memory and right; of these, `hot_blocks` were
    before."""

    blocks: int = 0
    bytes_read: int = 0
    statuses: tuple[ReadStatus, ...] = ()
    """Of the blocks that were read."""
    hot_blocks: int = 0
    right: tuple[int, ...] = ()
    """Which blocks are in memory and right, those behind a hole too."""


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

    async def read(
        self, keys: Sequence[bytes], into: Sequence[memoryview], hot: Set[int] = frozenset()
    ) -> Share:
        """Read the longest stored prefix of `keys` into `into` (a view per key). The blocks with the numbers in
        `hot` are there already: they are not asked for, and their views not written.

        When this returns, raises or has been cancelled, nothing writes into `into` any more.
        """
        cold = [index for index in range(len(keys)) if index not in hot]
        queued = len(cold) * self._block_tokens
        self.queue_tokens += queued
        try:
            statuses = await self._read([keys[i] for i in cold], [into[i] for i in cold])
        finally:
            self.queue_tokens -= queued
        read = {i for i, status in zip(cold, statuses, strict=False) if status is ReadStatus.FOUND}
        right = sorted(read | hot)
        found = next((at for at, index in enumerate(right) if at != index), len(right))
        return Share(
            found,
            len(read) * self._block_bytes,
            tuple(statuses),
            sum(index in hot for index in right[:found]),
            tuple(right),
        )

    async def _read(self, keys: list[bytes], into: list[memoryview]) -> list[ReadStatus]:
        """Of the longest stored prefix."""
        if not keys:
            return []
        match = await self._store.match(keys, lease_s=2 * self._deadline_s)
        if not match.blocks:
            return []
        try:
            return await self._store.read(
                keys[: match.blocks], into[: match.blocks], deadline_s=self._deadline_s
            )
        finally:
            await self._store.release(match)
