"""How many requests a gateway has at a time. Pure."""

from __future__ import annotations

from collections import Counter

from dualpath.gateway.errors import ApiError


class Admission:
    """A place for each request, from before its body is read until its client has everything."""

    def __init__(self, total: int, per_tenant: int | None) -> None:
        self._total, self._per_tenant = total, per_tenant
        self._taken: Counter[str] = Counter()
        self.used = 0

    def take(self, tenant: str) -> None:
        """Raises ApiError(429) where there is no place; else `give_back` it, once."""
        if self.used >= self._total:
            raise _full(f"this gateway has {self.used} requests already, as many as it takes")
        if self._per_tenant is not None and self._taken[tenant] >= self._per_tenant:
            raise _full(f"your key has {self._taken[tenant]} requests already, as many as it may")
        self.used += 1
        self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self.used -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]


def _full(what: str) -> ApiError:
    return ApiError(429, f"{what}; try again later", code="capacity", retry=True)
