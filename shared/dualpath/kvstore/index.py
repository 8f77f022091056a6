"""Which blocks a disk holds, in the order of their last use, and which give way where it may hold no more. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class BlockName(NamedTuple):
    """A block of one namespace; `space` is the name of the namespace's directory."""

    space: str
    key: bytes


class BlockIndex:
    """Blocks and the bytes of their files; the least recently used go first.

    A block that is about to be written reserves its bytes, so that all writes under way fit together.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        """Without a capacity nothing ever gives way."""
        self.capacity_bytes = capacity_bytes
        self.nbytes = 0
        self.reserved_bytes = 0
        self._blocks: OrderedDict[BlockName, int] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, name: BlockName) -> bool:
        return name in self._blocks

    def present(self, space: str, keys: Sequence[bytes]) -> bytes:
        """One byte per key of a namespace: 1 where the block is there, else 0."""
        return bytes((space, key) in self._blocks for key in keys)

    def counts(self) -> Counter[str]:
        """Blocks by namespace."""
        return self._counts.copy()

    def fill(self, blocks: Iterable[tuple[BlockName, int]]) -> None:
        """Add many, the least recently used first."""
        for name, nbytes in blocks:
            self.add(name, nbytes)

    def add(self, name: BlockName, nbytes: int) -> None:
        """Know a block as the one used last. One that is known already keeps its size."""
        if name not in self._blocks:
            self._blocks[name] = nbytes
            self._counts[name.space] += 1
            self.nbytes += nbytes
        self.use(name)

    def use(self, name: BlockName) -> None:
        """Does nothing for a block that is not there (any more)."""
        if name in self._blocks:
            self._blocks.move_to_end(name)

    def discard(self, name: BlockName) -> None:
        nbytes = self._blocks.pop(name, None)
        if nbytes is not None:
            self._counts[name.space] -= 1
            self.nbytes -= nbytes

    def reserve(self, nbytes: int, held: Callable[[BlockName], bool]) -> list[BlockName] | None:
        """Reserve `nbytes`, and return the blocks whose files have to go for it: they are no longer known.

        None, and nothing changed, where there is no room even without all blocks that are not `held`.
        """
        victims: list[BlockName] = []
        if self.capacity_bytes is not None:
            excess = self.nbytes + self.reserved_bytes + nbytes - self.capacity_bytes
            blocks = iter(self._blocks.items())
            while excess > 0:
                name, size = next(blocks, (None, 0))
                if name is None:
                    return None
                if not held(name):
                    victims.append(name)
                    excess -= size
        for name in victims:
            self.discard(name)
        self.reserved_bytes += nbytes
        return victims

    def unreserve(self, nbytes: int) -> None:
        """The write is over; if the block is there, it was added."""
        self.reserved_bytes -= nbytes
