"""Copies from a peer's memory into regions, done when the call returns: nothing has to be waited for when a region is
revoked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dualpath.memory.copying import Bytes, Move, copy_moves, halves

SHARED_BYTES = 3 << 20
"""From here on a second processor is worth the waking of it: one alone does not use all that memory can give."""


class Copies:
    """The copies of one endpoint's links, one at a time, as its event loop makes them."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="pull")

    def copy(self, sources: Sequence[Bytes], targets: Sequence[memoryview]) -> None:
        """Copy between pieces of the same sum, end to end; `sources` are `[pieces, bytes]` each."""
        made = list(_between(sources, targets))
        if sum(source.size for _, source in made) < SHARED_BYTES:
            copy_moves(made)
            return
        mine, others = halves(made)
        other = self._helper.submit(copy_moves, others)
        try:
            copy_moves(mine)
        finally:
            other.result()

    def close(self) -> None:
        self._helper.shutdown()


def _between(sources: Sequence[Bytes], targets: Sequence[memoryview]) -> Iterator[Move]:
    left = [target for target in reversed(targets) if target]
    for source in sources:
        if left and source.size <= len(left[-1]):
            # Most often: pieces that lie apart, into memory where they lie end to end.
            target = left.pop()
            if source.size < len(target):
                left.append(target[source.size :])
            yield np.frombuffer(target, np.uint8, source.size).reshape(source.shape), source
        else:
            for piece in source:
                yield from _cut(piece, left)


def _cut(source: Bytes, left: list[memoryview]) -> Iterator[Move]:
    """Into the targets that are left, of which the last is the next."""
    while source.size:
        target = left.pop()
        count = min(source.size, len(target))
        if count < len(target):
            left.append(target[count:])
        yield np.frombuffer(target, np.uint8, count)[np.newaxis], source[np.newaxis, :count]
        source = source[count:]
