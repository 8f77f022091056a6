"""The name of a request, by which its client, the logs and `dualpath why` know it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"

_SCOPE = "dualpath.request_id"
_GIVEN = re.compile(r"[A-Za-z0-9._:=+/@-]{1,128}")


@dataclass(frozen=True)
class RequestId:
    """`given` is the client's, or empty. It may come again, with another try of the client's: in the cluster it goes
    with what was `made` here, which no other request has."""

    given: str = ""
    made: str = field(default_factory=lambda: secrets.token_hex(12))

    @classmethod
    def of(cls, scope: Scope) -> RequestId:
        """That of an exchange; of what has none, a new one."""
        found = scope.get(_SCOPE)
        return found if isinstance(found, cls) else cls()

    @property
    def shown(self) -> str:
        """What the client is told."""
        return self.given or self.made

    @property
    def name(self) -> str:
        """What the cluster calls it."""
        return f"{self.given}~{self.made}" if self.given else self.made


class RequestIds:
    """ASGI: every exchange has an id, and every answer tells it. One of the client's that is too long, or has other
    characters than ids have, is not taken."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = RequestId(given if _GIVEN.fullmatch(given) else "")
        header = (HEADER.lower().encode(), request_id.shown.encode())

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await self._app({**scope, _SCOPE: request_id}, receive, tell)
