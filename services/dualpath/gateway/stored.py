"""Responses that may be gone on from or asked for again, as long as there is room. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from dualpath.gateway.errors import ApiError

Json = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """`messages` are those of the chat up to the answer, without instructions; `salt` is its tenant's."""

    salt: str
    messages: bytes
    response: bytes

    @property
    def nbytes(self) -> int:
        return len(self.messages) + len(self.response)


class StoredResponses:
    """Bounded: those used longest ago are forgotten first. They are this gateway's alone."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self.nbytes = 0

    def put(self, salt: str, messages: list[Json], response: Json) -> None:
        encode = msgspec.json.encode
        stored = Stored(salt, encode(messages), encode(response))
        self._stored[response["id"]] = stored
        self.nbytes += stored.nbytes
        while self.nbytes > self._capacity:
            _, oldest = self._stored.popitem(last=False)
            self.nbytes -= oldest.nbytes

    def get(self, response_id: str, salt: str) -> Stored:
        """Raises ApiError(404) where it is not known, or another tenant's."""
        stored = self._stored.get(response_id)
        if stored is None or stored.salt != salt:
            raise ApiError(
                404,
                f"response {response_id!r} is not known: it was not stored, was forgotten, or another gateway has it",
                code="response_not_found",
            )
        self._stored.move_to_end(response_id)
        return stored

    def messages(self, response_id: str, salt: str) -> list[Json]:
        """As `get`."""
        found: list[Json] = msgspec.json.decode(self.get(response_id, salt).messages)
        return found

    def delete(self, response_id: str, salt: str) -> None:
        """As `get`."""
        self.nbytes -= self.get(response_id, salt).nbytes
        del self._stored[response_id]
