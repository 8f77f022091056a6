"""Copies of many pieces of memory in few calls, each without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Pair = tuple[memoryview, memoryview]
"""(target, source), of equal length."""
Move = tuple[Bytes, Bytes]
"""(target, source), of equal shape `[pieces, bytes]`: pieces of equal length at equal distances."""

_WORD = np.dtype(np.uint64)
"""Of strided bytes numpy copies one at a time, which where they are in a cache takes twice as long as words do."""


def copy_pieces(pairs: Iterable[Pair]) -> None:
    """Copy each source to its target, none of which overlap."""
    copy_moves(moves(pairs))


def copy_moves(made: Iterable[Move]) -> None:
    for target, source in made:
        if source.shape[-1] % _WORD.itemsize:
            np.copyto(target, source)
        else:
            np.copyto(target.view(_WORD), source.view(_WORD))


def moves(pairs: Iterable[Pair]) -> Iterator[Move]:
    """Pairs that follow one another at equal distances, as a layer's pieces do in neighbouring slots, as one move:
    to take the interpreter's lock anew for each, while other threads want it, costs as much as the copying."""
    run = _Run()
    for into, out_of in pairs:
        if not into.nbytes:
            continue
        target, source = np.frombuffer(into, np.uint8), np.frombuffer(out_of, np.uint8)
        if not run.takes(target, source):
            yield from run.moves()
            run = _Run()
            run.takes(target, source)
    yield from run.moves()


def halves(made: Sequence[Move]) -> tuple[list[Move], list[Move]]:
    """The same moves in two parts of about as many bytes."""
    left = sum(source.size for _, source in made) // 2
    first: list[Move] = []
    for index, (target, source) in enumerate(made):
        if source.size > left:
            (mine, others), (out_of, rest) = _split(target, left), _split(source, left)
            return [*first, (mine, out_of)], [(others, rest), *made[index + 1 :]]
        first.append((target, source))
        left -= source.size
    return first, []


def _split(pieces: Bytes, left: int) -> tuple[Bytes, Bytes]:
    """Between two pieces, or within one that is alone, after about `left` bytes."""
    count, nbytes = pieces.shape
    if count > 1:
        return pieces[: left // nbytes], pieces[left // nbytes :]
    return pieces[:, :left], pieces[:, left:]


class _Run:
    """The first piece of a run, how far apart its pieces lie, and where the last one begins."""

    def __init__(self) -> None:
        self._first: Move | None = None
        self._last = (0, 0)
        self._steps = (0, 0)
        self._count = 0

    def takes(self, target: Bytes, source: Bytes) -> bool:
        """Whether the pair goes on with the run, to which it then belongs."""
        at = _address(target), _address(source)
        if self._first is None:
            self._first = target, source
        elif len(source) != len(self._first[1]):
            return False
        else:
            steps = at[0] - self._last[0], at[1] - self._last[1]
            if self._count > 1 and steps != self._steps:
                return False
            self._steps = steps
        self._last = at
        self._count += 1
        return True

    def moves(self) -> Iterator[Move]:
        if self._first is None:
            return
        target, source = self._first
        if self._count == 1:
            yield target[np.newaxis], source[np.newaxis]
        else:
            shape = self._count, len(source)
            yield (
                as_strided(target, shape, (self._steps[0], 1)),
                as_strided(source, shape, (self._steps[1], 1)),
            )


def _address(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
