"""The hot tier's books: which free slots still hold a Full Block, and which of them gives way first. Pure."""

from __future__ import annotations

from collections import OrderedDict


class HotBlocks:
    """Blocks by key, each in a slot that nobody owns. The one kept longest ago gives way first."""

    def __init__(self) -> None:
        self._slots: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def keep(self, key: bytes, slot: int) -> int | None:
        """Keep a block. Returns the slot of another copy of it that was kept before, which is free now."""
        before = self._slots.pop(key, None)
        self._slots[key] = slot
        return before

    def claim(self, key: bytes) -> int | None:
        """The slot of a block, which is not kept any more; None where the block is not."""
        return self._slots.pop(key, None)

    def evict(self) -> int:
        """Give up the block kept longest ago; its slot. Raises KeyError where none is kept."""
        return self._slots.popitem(last=False)[1]
