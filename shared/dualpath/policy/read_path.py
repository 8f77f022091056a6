"""Which node's storage NIC reads a request's hits (paper §5, "Read path"; split: its future work). Pure."""

from __future__ import annotations

from itertools import cycle

from dualpath.policy.api import ReadPathPolicy, ReadSplit


def _prefill(hit_blocks: int) -> ReadSplit:
    return ReadSplit(prefill_blocks=hit_blocks, hit_blocks=hit_blocks)


def _decode(hit_blocks: int) -> ReadSplit:
    return ReadSplit(prefill_blocks=0, hit_blocks=hit_blocks)


class FixedPrefill(ReadPathPolicy):
    """The PE read path, always (what systems before the paper do)."""

    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        return _prefill(hit_blocks)


class FixedDecode(ReadPathPolicy):
    """The DE read path, always."""

    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        return _decode(hit_blocks)


class SplitHalf(ReadPathPolicy):
    """Half of the blocks on each side; the sides take turns with the odd block, the PE side first."""

    def __init__(self) -> None:
        self._odd = cycle((1, 0))

    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        half, odd = divmod(hit_blocks, 2)
        return ReadSplit(half + (next(self._odd) if odd else 0), hit_blocks)


class RoundRobinPath(ReadPathPolicy):
    """The two paths in turn, the PE's first, over the requests that have hits."""

    def __init__(self) -> None:
        self._turns = cycle((_prefill, _decode))

    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        return next(self._turns)(hit_blocks) if hit_blocks else ReadSplit(0, 0)


class Adaptive(ReadPathPolicy):
    """The side whose node's read queue is shorter (the paper's rule).

    Equal queues take turns: an idle cluster would else load one side's NIC only, request after request.
    """

    def __init__(self) -> None:
        self._ties = RoundRobinPath()

    def choose(self, hit_blocks: int, prefill_read_q: int, decode_read_q: int) -> ReadSplit:
        if prefill_read_q == decode_read_q:
            return self._ties.choose(hit_blocks, prefill_read_q, decode_read_q)
        return _prefill(hit_blocks) if prefill_read_q < decode_read_q else _decode(hit_blocks)
