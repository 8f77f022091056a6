"""What a client is told when it gets no answer, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

RETRY_AFTER_S = 1


class ApiError(Exception):
    """An HTTP status and a sentence for the client. `param` names what is wrong in its body, `code` is a
    stable word for programs; with `retry` the client is told to come back after `retry_after_s`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: bool = False,
        retry_after_s: int = RETRY_AFTER_S,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.logged = False
        """A line of the log tells of it already."""

    @property
    def kind(self) -> str:
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(self.retry_after_s)} if self.retry else {}


def internal(request_id: str) -> ApiError:
    """A fault of the gateway's own, which its log describes."""
    return ApiError(
        500, f"the gateway failed; its log says more of request {request_id}", code="internal"
    )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The client's body is wrong."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str = "unavailable") -> ApiError:
    """The cluster cannot serve this now; the client may try again."""
    return ApiError(503, message, code=code, retry=True)
