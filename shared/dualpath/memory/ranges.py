"""Ranges of one piece of memory, given out page by page. Pure."""

from __future__ import annotations

from dualpath.memory.admission import PAGE_BYTES as ALIGNMENT

__all__ = ["ALIGNMENT", "RangeAllocator"]


class RangeAllocator:
    """Ranges of an address space, first fit.

    At most `budget` bytes are out at a time, or a single range that is larger.
    """

    def __init__(self, size: int, budget: int) -> None:
        self.size = size
        self.budget = budget
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, size)]
        """(start, stop), in order, never touching each other."""
        self._taken: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int | None:
        """The offset of `nbytes` bytes, or None where there is no room now. Raises ValueError where there
        never is."""
        length = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if length > self.size:
            raise ValueError(f"{nbytes} bytes never fit into {self.size}")
        if self.used and self.used + length > self.budget:
            return None
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= length:
                rest = (start + length, stop)
                self._free[index : index + 1] = [rest] if rest[0] < stop else []
                self._taken[start] = length
                self.used += length
                return start
        return None

    def free(self, offset: int) -> None:
        """Give back what `allocate` returned; raises KeyError for anything else."""
        length = self._taken.pop(offset)
        self.used -= length
        start, stop = offset, offset + length
        index = 0
        while index < len(self._free) and self._free[index][1] < start:
            index += 1
        touching = index
        while touching < len(self._free) and self._free[touching][0] <= stop:
            start = min(start, self._free[touching][0])
            stop = max(stop, self._free[touching][1])
            touching += 1
        self._free[index:touching] = [(start, stop)]
