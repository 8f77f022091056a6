"""The endpoint over RDMA."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from typing import Any

from dualpath.lanes.api import Lane
from dualpath.memory.device import Staging
from dualpath.memory.shared import SharedMemory
from dualpath.transport.api import MessageHandler
from dualpath.transport.frames import FrameReader
from dualpath.transport.link import Link
from dualpath.transport.rdma import nixl
from dualpath.transport.rdma.link import Fabric, RdmaLink
from dualpath.transport.rdma.loopback import Loopback
from dualpath.transport.rdma.memory import Pinned, Rooms
from dualpath.transport.rdma.rail import Poller
from dualpath.transport.stream import ByteStream
from dualpath.transport.tcp import TcpEndpoint

_ANY = "^cma"
"""Memory that cma writes to cannot be fenced: it asks neither for a connection nor for a registration."""


class RdmaEndpoint(TcpEndpoint):
    """As TcpEndpoint, but larger writes go through NIXL. Its peers must be of its kind where either side writes;
    for messages alone they need not.

    `device` is UCX's name of a NIC (`mlx5_0:1`); without one, all that there are, or the loopback device where
    `host` is loopback. `service_levels` are InfiniBand's by lane, left to UCX where there is none; RoCE has the DSCP
    of `marks`. Raises NoRdma.
    """

    def __init__(
        self,
        endpoint_id: str,
        *,
        host: str,
        device: str | None = None,
        service_levels: Mapping[Lane, int | None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(endpoint_id, host=host, **options)
        nixl.load()
        self._pinned = Pinned()
        self._poller = Poller()
        self._device = device or ("lo" if _is_loopback(host) else None)
        self._service_levels = service_levels or {}
        self._rooms: list[Rooms] = []
        self._loopbacks: list[Loopback] = []
        self._fabrics = {lane: self._fabric(lane) for lane in Lane}

    def _fabric(self, lane: Lane) -> Fabric:
        outgoing, incoming = (
            Rooms(f"{self.endpoint_id}.{lane.name.lower()}.{way}", self.pin)
            for way in ("out", "in")
        )
        self._rooms += [outgoing, incoming]
        return Fabric(
            pinned=self._pinned,
            outgoing=outgoing,
            incoming=incoming,
            poller=self._poller,
            config=self._config(lane),
            spawn=self._spawn,
        )

    def loopback(self, staging: Staging) -> Loopback:
        """Copies between the host and the device of `staging`, which is the endpoint's from now on."""
        # The NIC alone may reach an accelerator; cuda_copy is there to tell UCX whose memory it is.
        tls = _ANY if staging.place.kind == "DRAM" else "rc,cuda_copy"
        made = Loopback(
            self.endpoint_id,
            self._config(Lane.LOW, tls),
            staging,
            self.nic,
            self._poller,
            self._deadline_s,
        )
        self._loopbacks.append(made)
        return made

    def _config(self, lane: Lane, tls: str = _ANY) -> str:
        config = {"TLS": tls, "IB_TRAFFIC_CLASS": str(self._marks.dscp[lane] << 2)}
        if self._device is not None:
            config["NET_DEVICES"] = self._device
        if (level := self._service_levels.get(lane)) is not None:
            config["IB_SL"] = str(level)
        return ",".join(f"{name}={value}" for name, value in config.items())

    async def start(self, on_message: MessageHandler) -> None:
        """Raises OSError where the port cannot be had, NoRdma where UCX has no use for the device."""
        configs = [fabric.config for fabric in self._fabrics.values()]
        for config in (*configs, *(loopback.config for loopback in self._loopbacks)):
            await asyncio.to_thread(nixl.try_out, config)
        await super().start(on_message)

    @property
    def sends_files(self) -> bool:
        return False

    def pin(self, memory: memoryview, shared: SharedMemory | None = None) -> None:
        extent = self._pinned.add(memory)
        if extent is not None:
            for link in self._routes.links:
                if isinstance(link, RdmaLink):
                    link.pin(extent)

    async def revoke(self, key: int) -> None:
        """Waits for writes into pinned memory that are under way. A peer that does not end them in time loses
        its link, and with it the only way to this memory that it had."""
        await super().revoke(key)
        draining = [
            link.drained(key) for link in list(self._routes.links) if isinstance(link, RdmaLink)
        ]
        await asyncio.gather(*draining)

    async def close(self) -> None:
        await super().close()
        for loopback in self._loopbacks:
            loopback.close()
        self._pinned.close()
        for rooms in self._rooms:
            rooms.close()

    def _new_link(
        self, stream: ByteStream, reader: FrameReader, peer_meeting: str, **options: Any
    ) -> Link:
        return RdmaLink(
            stream,
            reader,
            fabric=self._fabrics[options["lane"]],
            name=f"{self.endpoint_id}/{self.incarnation}/{options['link_id']}",
            **options,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
