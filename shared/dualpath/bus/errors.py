"""What can go wrong with a message on the bus."""

from __future__ import annotations


class BusError(Exception):
    """Base of all errors of the bus; the text is a sentence."""


class BusTimeout(BusError):
    """No answer in time. The receiver may or may not have handled the message."""


class BusUnavailable(BusError):
    """Not connected, or nobody serves the subject: surely not handled."""


class MalformedAnswer(BusError):
    """The receiver answered with bytes that are no known answer."""


class PayloadTooLarge(BusError):
    """The message does not fit the bus; `limit` is what would, in bytes."""

    def __init__(self, subject: str, nbytes: int, limit: int) -> None:
        super().__init__(
            f"a message of {nbytes} bytes to {subject} exceeds the bus's limit of {limit} bytes; "
            "send less at once, or raise max_payload of the NATS server"
        )
        self.nbytes = nbytes
        self.limit = limit
