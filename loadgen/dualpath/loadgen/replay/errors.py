"""Why a turn failed, or a replay could not begin."""

from __future__ import annotations


class ReplayError(Exception):
    """The replay cannot begin; the text says what to do."""


class TurnError(Exception):
    """One request got no whole answer. `kind` is short and stable:

    `connect` no connection; `http-STATUS` an answer that is an error; `timeout`; `broken` the connection ended within
    the answer; `error-event` the stream said so; `incomplete` it ended without finish_reason or [DONE]; `malformed`
    no OpenAI stream; `length` not the tokens that were asked for.

    `retry_after_s`: not None where the same request may be sent again, after so long."""

    def __init__(self, kind: str, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.retry_after_s = kind, detail, retry_after_s


class ClosedBeforeAnswer(TurnError):
    """A kept connection ended as its next request was sent: the server had closed it for being idle."""

    def __init__(self) -> None:
        super().__init__(
            "broken", "the server closed a kept connection before it answered", retry_after_s=0.0
        )
