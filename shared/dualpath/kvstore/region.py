"""Blocks in separate pieces of memory, as one region that a shard writes into. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dualpath.transport.api import Followed
from dualpath.wire.store import unpack_run


class BlocksRegion(Followed):
    """Block i is at [i · block size, (i + 1) · block size); a write's immediate data says which ones it brought
    (`pack_run`).

    The memory stays its owner's. `on_blocks` is called with the numbers of blocks that have just landed, in order,
    with each once; `on_whole` before, once for each, as soon as it is seen that all of its bytes are there.
    """

    def __init__(
        self,
        views: Sequence[memoryview],
        on_blocks: Callable[[list[int]], None],
        on_whole: Callable[[int], None],
    ) -> None:
        """`views` are of equal size, at least one, of format "B"."""
        self._views = views
        self._size = views[0].nbytes
        self._on_blocks = on_blocks
        self._on_whole = on_whole
        self._awaited = set(range(len(views)))
        self._whole: set[int] = set()
        self.rewritten: set[int] = set()
        """Blocks that something was written to after they were whole, or had landed: what was seen of them before
        may not hold."""

    @property
    def nbytes(self) -> int:
        return self._size * len(self._views)

    @property
    def awaited(self) -> int:
        """Blocks that have not landed."""
        return len(self._awaited)

    def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
        pieces: list[memoryview] = []
        while nbytes > 0:
            index, within = divmod(offset, self._size)
            if index in self._whole:
                self.rewritten.add(index)
            piece = self._views[index][within : within + nbytes]
            pieces.append(piece)
            offset, nbytes = offset + len(piece), nbytes - len(piece)
        return pieces

    def on_bytes(self, offset: int, nbytes: int) -> None:
        # From the last one on down to one that is known: what came before was seen then.
        index = (offset + nbytes) // self._size - 1
        fresh: list[int] = []
        while index * self._size >= offset and index not in self._whole:
            fresh.append(index)
            index -= 1
        self._are_whole(fresh[::-1])

    def on_write(self, imm: int) -> None:
        awaited = self._awaited
        landed = [index for index in unpack_run(imm, len(self._views)) if index in awaited]
        if landed:
            awaited.difference_update(landed)
            self._are_whole([index for index in landed if index not in self._whole])
            self._on_blocks(landed)

    def _are_whole(self, blocks: Sequence[int]) -> None:
        self._whole.update(blocks)
        for index in blocks:
            self._on_whole(index)
