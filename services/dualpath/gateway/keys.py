"""API keys: who a client is. Only the keys' hashes are known here."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from dualpath.gateway.errors import ApiError


@dataclass(frozen=True)
class Tenant:
    """`salt` separates the KV-Cache of tenants; empty where there are no keys."""

    name: str = ""
    salt: str = ""


ANYBODY = Tenant()


class ApiKeys:
    """`hashed` are `NAME=SHA256` in hexadecimal, as the settings have them. Without any, everybody may come."""

    def __init__(self, hashed: Sequence[str]) -> None:
        self._tenants: list[tuple[bytes, Tenant]] = []
        for entry in hashed:
            name, _, digest = entry.rpartition("=")
            self._tenants.append((bytes.fromhex(digest), Tenant(name, digest.lower())))

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose key is in the header `Authorization: Bearer KEY`. Takes the same time for every wrong key; raises
        ApiError(401)."""
        if not self._tenants:
            return ANYBODY
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise _unauthorized("no API key was given; send it as `Authorization: Bearer KEY`")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = [tenant for known, tenant in self._tenants if hmac.compare_digest(known, digest)]
        if not found:
            raise _unauthorized("the API key is not known here")
        return found[0]


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")
