"""Endpoints as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dualpath.lanes.api import Lane, Nic
from dualpath.settings import Settings
from dualpath.transport.rdma import RdmaEndpoint
from dualpath.transport.samehost import SameHostEndpoint
from dualpath.transport.sockets import Marks
from dualpath.transport.tcp import TcpEndpoint
from dualpath.transport.tls import Tls


def make_endpoint(
    settings: Settings,
    endpoint_id: str,
    nic: Nic,
    *,
    fingerprint: str = "",
    port: int = 0,
    number: int = 0,
) -> TcpEndpoint:
    """The endpoint of one NIC of this process: 0 is its SNIC, the CNICs follow. Raises rdma.NoRdma."""
    tls = Tls.of(settings)
    make: Callable[..., TcpEndpoint]
    if settings.transport == "rdma":
        make = _rdma(settings, number)
    else:
        make = SameHostEndpoint if settings.use_shared_memory else TcpEndpoint
    return make(
        endpoint_id,
        host=settings.host,
        announce=settings.announced_host,
        nic=nic,
        secret=(settings.secret or "").encode(),
        fingerprint=fingerprint,
        transfer_deadline_s=settings.transfer_deadline_s,
        port=port,
        tls=tls,
        marks=Marks.of(settings),
    )


def _rdma(settings: Settings, number: int) -> partial[RdmaEndpoint]:
    devices = settings.rdma_devices
    high, low = settings.rdma_sl or (None, None)
    return partial(
        RdmaEndpoint,
        device=devices[min(number, len(devices) - 1)] if devices else None,
        # Without lanes all traffic is the low one's, as with DSCP.
        service_levels={Lane.HIGH: high if settings.lanes else low, Lane.LOW: low},
    )
