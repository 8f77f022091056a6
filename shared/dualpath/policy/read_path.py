"""Which node's storage NIC reads a request's hits (paper §5, "Read path"; split: its future work). Pure."""

from __future__ import annotations

from itertools import cycle

from dualpath.policy.api import ReadPathPolicy, ReadSide, ReadSplit


def _prefill(hit_blocks: int) -> ReadSplit:
    return ReadSplit(prefill_blocks=hit_blocks, hit_blocks=hit_blocks)


def _decode(hit_blocks: int) -> ReadSplit:
    return ReadSplit(prefill_blocks=0, hit_blocks=hit_blocks)


class FixedPrefill(ReadPathPolicy):
    """The PE read path, always (what systems before the paper do)."""

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        return _prefill(hit_blocks)


class FixedDecode(ReadPathPolicy):
    """The DE read path, always."""

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        return _decode(hit_blocks)


class SplitHalf(ReadPathPolicy):
    """Half of the blocks on each side; the sides take turns with the odd block, the PE side first."""

    def __init__(self) -> None:
        self._odd = cycle((1, 0))

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        half, odd = divmod(hit_blocks, 2)
        return ReadSplit(half + (next(self._odd) if odd else 0), hit_blocks)


class RoundRobinPath(ReadPathPolicy):
    """The two paths in turn, the PE's first, over the requests that have hits."""

    def __init__(self) -> None:
        self._turns = cycle((_prefill, _decode))

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        return next(self._turns)(hit_blocks) if hit_blocks else ReadSplit(0, 0)


class Adaptive(ReadPathPolicy):
    """The side whose node's read queue is shorter (the paper's rule).

    Equal queues take turns: an idle cluster would else load one side's NIC only, request after request.
    """

    def __init__(self) -> None:
        self._ties = RoundRobinPath()

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        if prefill.read_q == decode.read_q:
            return self._ties.choose(hit_blocks, prefill, decode)
        return _prefill(hit_blocks) if prefill.read_q < decode.read_q else _decode(hit_blocks)


class Split(ReadPathPolicy):
    """So many blocks on each side that both finish together, by their queues and rates.

    With queues Q and rates R of both sides and a hit of H tokens, all is read at
    t = (Q_PE + Q_DE + H) / (R_PE + R_DE), and a side reads what it can do until then: t · R − Q. A side whose piece
    would be smaller than `min_blocks` reads nothing: a piece costs a match, a lease and messages whatever its size.
    Then the side that finishes first reads all; equal ones take turns, as they do with the block that no half
    divides.
    """

    def __init__(self, block_tokens: int = 64, min_blocks: int = 4) -> None:
        if block_tokens < 1 or min_blocks < 1:
            raise ValueError(
                f"pieces of {min_blocks} blocks of {block_tokens} tokens read nothing; use 1 or more"
            )
        self._block_tokens, self._min_blocks = block_tokens, min_blocks
        self._turns = cycle((True, False))

    def choose(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        if not hit_blocks:
            return ReadSplit(0, 0)
        rates = prefill.tokens_per_s + decode.tokens_per_s
        hit = hit_blocks * self._block_tokens
        total = prefill.read_q + decode.read_q + hit
        exact = (total * prefill.tokens_per_s / rates - prefill.read_q) / self._block_tokens
        if hit_blocks >= 2 * self._min_blocks:
            share = self._rounded(exact)
            if share >= self._min_blocks and hit_blocks - share >= self._min_blocks:
                return ReadSplit(share, hit_blocks)
        return self._whole(hit_blocks, prefill, decode)

    def _whole(self, hit_blocks: int, prefill: ReadSide, decode: ReadSide) -> ReadSplit:
        hit = hit_blocks * self._block_tokens
        prefill_s = (prefill.read_q + hit) / prefill.tokens_per_s
        decode_s = (decode.read_q + hit) / decode.tokens_per_s
        if prefill_s == decode_s:
            return _prefill(hit_blocks) if next(self._turns) else _decode(hit_blocks)
        return _prefill(hit_blocks) if prefill_s < decode_s else _decode(hit_blocks)

    def _rounded(self, exact: float) -> int:
        whole = int(exact // 1)
        rest = exact - whole
        if rest == 0.5:
            return whole + (1 if next(self._turns) else 0)
        return whole + (rest > 0.5)
