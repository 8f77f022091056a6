"""What the supervisor writes down about its cluster, for `dualpath status`, `down` and tests."""

from __future__ import annotations

from typing import Literal

import msgspec

from dualpath.cluster.home import Home, write_private
from dualpath.cluster.processes import ProcessId

State = Literal["starting", "ready", "stopping"]


class Ready(msgspec.Struct, frozen=True):
    """What a service says of itself once it serves. `data` is its transport endpoint as HOST:PORT where peers
    are told so by settings (storage shards); `url` the API's base (gateways)."""

    http_port: int = 0
    data: str | None = None
    url: str | None = None


class ServiceRecord(msgspec.Struct, frozen=True):
    """`exit_status` is None while it lives; negative: the signal that ended it."""

    name: str
    role: str
    process: ProcessId
    ready: Ready | None = None
    exit_status: int | None = None

    @property
    def has_left(self) -> bool:
        """A node that was drained: it ended by itself, in order."""
        return self.role in ("prefill", "decode") and self.exit_status == 0


class ClusterRecord(msgspec.Struct, frozen=True):
    """`run/cluster.json`. Only true while `supervisor` lives: a killed supervisor leaves its last words."""

    supervisor: ProcessId
    state: State
    model: str
    mode: str
    nats_url: str
    stop_s: float
    services: tuple[ServiceRecord, ...] = ()

    @property
    def base_urls(self) -> list[str]:
        """Of the gateways that live, first to last; each ends in `/v1`."""
        return [
            service.ready.url
            for service in self.services
            if service.ready and service.ready.url and service.exit_status is None
        ]


def save_record(home: Home, record: ClusterRecord) -> None:
    write_private(home.record_file, msgspec.json.format(msgspec.json.encode(record)))


def load_record(home: Home) -> ClusterRecord | None:
    """The last record; None where none was written, or none that this version can read."""
    try:
        return msgspec.json.decode(home.record_file.read_bytes(), type=ClusterRecord)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, msgspec.DecodeError):
        return None
