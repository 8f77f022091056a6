"""How many requests a gateway has at a time, and how many tokens a key gets. Pure: `now_s` is a monotonic clock's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from dualpath.gateway.errors import ApiError
from dualpath.settings import KeyLimits

_MINUTE_S = 60.0


@dataclass
class TokenBucket:
    """A minute's tokens at most, filled steadily. What is generated is known too late to be refused: it may make the
    level negative, and the key waits until that is paid off."""

    per_minute: int
    filled_at_s: float
    level: float = 0.0

    def __post_init__(self) -> None:
        self.level = float(self.per_minute)

    def wait_s(self, tokens: int, now_s: float) -> float:
        """Seconds until so many tokens may be taken; 0: now. More than a minute's wait for a full bucket."""
        self._fill(now_s)
        missing = min(tokens, self.per_minute) - self.level
        return max(missing, 0.0) * _MINUTE_S / self.per_minute

    def take(self, tokens: int, now_s: float) -> None:
        self._fill(now_s)
        self.level -= tokens

    def _fill(self, now_s: float) -> None:
        gained = (now_s - self.filled_at_s) * self.per_minute / _MINUTE_S
        self.level = min(self.level + gained, float(self.per_minute))
        self.filled_at_s = now_s


class Place:
    """What a request holds, from before its body is read until its client has everything."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission = admission
        self.tenant = tenant

    def charge(self, prompt_tokens: int, now_s: float) -> None:
        """Take the prompt's tokens off the key's. Raises ApiError(429) where there are too few."""
        self._admission.charge(self.tenant, prompt_tokens, now_s)

    def give_back(self, generated_tokens: int, now_s: float) -> None:
        """Once. What was generated counts, too."""
        self._admission.give_back(self.tenant, generated_tokens, now_s)


class Admission:
    """The places of one gateway, and the tokens of its keys."""

    def __init__(
        self, total: int, usual: KeyLimits, limits: Mapping[str, KeyLimits] | None = None
    ) -> None:
        """`limits` by key; what they leave open is as in `usual`."""
        self._total, self._usual, self._limits = total, usual, limits or {}
        self._taken: Counter[str] = Counter()
        self._buckets: dict[str, TokenBucket] = {}
        self.used = 0

    def take(self, tenant: str, now_s: float) -> Place:
        """Raises ApiError(429) where there is no place, or the key has no tokens left."""
        if self.used >= self._total:
            raise _full(f"this gateway has {self.used} requests already, as many as it takes")
        own = self._limits.get(tenant, self._usual)
        most = own.requests or self._usual.requests
        if most is not None and self._taken[tenant] >= most:
            raise _full(f"your key has {self._taken[tenant]} requests already, as many as it may")
        self._check_tokens(tenant, 1, now_s)
        self.used += 1
        self._taken[tenant] += 1
        return Place(self, tenant)

    def charge(self, tenant: str, tokens: int, now_s: float) -> None:
        """See Place."""
        self._check_tokens(tenant, tokens, now_s)
        if (bucket := self._bucket(tenant, now_s)) is not None:
            bucket.take(tokens, now_s)

    def give_back(self, tenant: str, tokens: int, now_s: float) -> None:
        """See Place."""
        self.used -= 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        if (bucket := self._bucket(tenant, now_s)) is not None:
            bucket.take(tokens, now_s)

    def _bucket(self, tenant: str, now_s: float) -> TokenBucket | None:
        own = self._limits.get(tenant, self._usual)
        per_minute = own.tokens_per_minute or self._usual.tokens_per_minute
        if per_minute is None:
            return None
        return self._buckets.setdefault(tenant, TokenBucket(per_minute, now_s))

    def _check_tokens(self, tenant: str, tokens: int, now_s: float) -> None:
        bucket = self._bucket(tenant, now_s)
        if bucket is None or not (wait_s := bucket.wait_s(tokens, now_s)):
            return
        raise ApiError(
            429,
            f"your key may use {bucket.per_minute} tokens a minute; come back in {ceil(wait_s)} s",
            code="rate_limit_exceeded",
            retry=True,
            retry_after_s=ceil(wait_s),
        )


def _full(what: str) -> ApiError:
    return ApiError(429, f"{what}; try again later", code="capacity", retry=True)
