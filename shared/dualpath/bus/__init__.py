"""The control plane: typed messages over NATS, request–reply. KV bytes never travel here."""

from dualpath.bus.errors import (
    BusError,
    BusTimeout,
    BusUnavailable,
    MalformedAnswer,
    PayloadTooLarge,
)
from dualpath.bus.nats_bus import Bus

__all__ = [
    "Bus",
    "BusError",
    "BusTimeout",
    "BusUnavailable",
    "MalformedAnswer",
    "PayloadTooLarge",
]
