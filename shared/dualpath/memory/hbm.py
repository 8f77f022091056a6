"""What is promised, allocated and free of the engines' device memory. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class HbmLedger(Generic[Owner]):
    """One decode engine's HBM, in tokens.

    Three states of an owner: *promised* (counted so that placement does not overbook, but nobody is kept
    from allocating by it), *allocated*, gone. Age is the order of allocation: where growing does not fit,
    the youngest gives way, so the oldest always goes on. What is freed for a growing owner is kept for it:
    newcomers would else take it, again and again.
    """

    def __init__(self, capacity_tokens: int) -> None:
        if capacity_tokens < 0:
            raise ValueError(f"HBM cannot hold {capacity_tokens} tokens; give 0 or more")
        self.capacity_tokens = capacity_tokens
        self._promised: dict[Owner, int] = {}
        self._allocated: dict[Owner, int] = {}
        self._claims: dict[Owner, int] = {}
        self.promised_tokens = 0
        self.allocated_tokens = 0

    @property
    def free_tokens(self) -> int:
        """Neither promised nor allocated; 0 where promises exceed what there is."""
        return max(self.capacity_tokens - self.allocated_tokens - self.promised_tokens, 0)

    @property
    def owners(self) -> Sequence[Owner]:
        """Owners of allocations, the oldest first."""
        return list(self._allocated)

    def promise(self, owner: Owner, tokens: int) -> None:
        """Count `tokens` for `owner`; a second promise replaces the first. Raises ValueError for an owner that
        has an allocation."""
        if owner in self._allocated:
            raise ValueError(f"{owner!r} has its HBM already and cannot be promised more")
        self.withdraw(owner)
        self._promised[owner] = _positive(tokens)
        self.promised_tokens += tokens

    def withdraw(self, owner: Owner) -> None:
        """Forget the promise to `owner`, if there is one."""
        self.promised_tokens -= self._promised.pop(owner, 0)

    def allocate(self, owner: Owner, tokens: int) -> bool:
        """Turn the promise to `owner`, if any, into an allocation of `tokens`. False, and nothing changed, where
        they do not fit beside the other allocations and what these have asked to grow by. Raises ValueError for
        an owner that has one."""
        if owner in self._allocated:
            raise ValueError(f"{owner!r} has its HBM already; use grow")
        taken = self.allocated_tokens + sum(self._claims.values())
        if taken + _positive(tokens) > self.capacity_tokens:
            return False
        self.withdraw(owner)
        self._allocated[owner] = tokens
        self.allocated_tokens += tokens
        return True

    def grow(self, owner: Owner, tokens: int) -> list[Owner]:
        """Give `owner` so many more, and return []; or return whom to pre-empt first, the youngest first.

        Nothing grows until a call returns []: release the victims, then call again; until then, or until
        `release(owner)`, nobody is allocated what the victims gave up. `[owner]` means that those younger than it
        do not hold enough: it has to go itself (which frees what the older ones need). Raises KeyError for an
        owner without an allocation.
        """
        held = self._allocated[owner]
        self._claims.pop(owner, None)
        missing = self.allocated_tokens + _positive(tokens) - self.capacity_tokens
        if missing <= 0:
            self._allocated[owner] = held + tokens
            self.allocated_tokens += tokens
            return []
        victims: list[Owner] = []
        for other, size in reversed(self._allocated.items()):
            if other == owner:
                return [owner]
            victims.append(other)
            missing -= size
            if missing <= 0:
                break
        self._claims[owner] = tokens
        return victims

    def release(self, owner: Owner) -> None:
        """Give the allocation and any promise back; does nothing for an owner without."""
        self.withdraw(owner)
        self._claims.pop(owner, None)
        self.allocated_tokens -= self._allocated.pop(owner, 0)


class Budget:
    """A counted amount, of a prefill engine's HBM in bytes for example."""

    def __init__(self, total: int) -> None:
        if total < 0:
            raise ValueError(f"a budget cannot be {total}; give 0 or more")
        self.total = total
        self.used = 0

    @property
    def free(self) -> int:
        return self.total - self.used

    def try_take(self, n: int) -> bool:
        """Take `n`, or nothing and return False where fewer are free."""
        if _positive(n) > self.free:
            return False
        self.used += n
        return True

    def give(self, n: int) -> None:
        """Raises ValueError where more comes back than was taken."""
        if _positive(n) > self.used:
            raise ValueError(f"{n} came back, but only {self.used} were taken")
        self.used -= n


def _positive(n: int) -> int:
    if n < 0:
        raise ValueError(f"an amount of memory cannot be {n}; give 0 or more")
    return n
