"""Copies from a peer's memory into regions, done when the call returns: nothing has to be waited for when a region is
revoked."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SHARED_BYTES = 3 << 20
"""From here on a second processor is worth the waking of it: one alone does not use all that memory can give."""
_MIN_PART_BYTES = 64 * 1024
"""A smaller piece is copied without letting go of the interpreter's lock: to take it again would take longer."""

Pair = tuple[memoryview, memoryview]
"""(target, source), of equal length."""


class Copies:
    """The copies of one endpoint's links, one at a time, as its event loop makes them."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="pull")

    def copy(self, sources: Sequence[memoryview], targets: Sequence[memoryview]) -> None:
        """Copy between pieces of the same sum, end to end."""
        pairs = _pair(sources, targets)
        total = sum(len(target) for target, _ in pairs)
        if total < SHARED_BYTES or len(pairs) < 2:
            _copy(pairs)
            return
        taken = index = 0
        while 2 * taken < total and index < len(pairs) - 1:
            taken += len(pairs[index][0])
            index += 1
        other = self._helper.submit(_copy, pairs[index:])
        try:
            _copy(pairs[:index])
        finally:
            other.result()

    def close(self) -> None:
        self._helper.shutdown()


def _pair(sources: Sequence[memoryview], targets: Sequence[memoryview]) -> list[Pair]:
    pairs: list[Pair] = []
    left = [target for target in targets if target]
    left.reverse()
    for source in sources:
        while source:
            target = left.pop()
            count = min(len(source), len(target))
            pairs.append((target[:count], source[:count]))
            source = source[count:]
            if count < len(target):
                left.append(target[count:])
    return pairs


def _copy(pairs: Sequence[Pair]) -> None:
    for target, source in pairs:
        if len(target) < _MIN_PART_BYTES:
            target[:] = source
        else:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
