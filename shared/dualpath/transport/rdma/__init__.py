"""The transport over RDMA: links are TCP, the payload of writes goes beside them, one-sided, through NIXL.

    writer                              target
    ATTACH (its agent)          →
                                ←       ATTACH (its agent and registered memory)      once per link
    ASK (key, offset, length)   →
                                ←       GRANT (addresses), or the answers of a TCP write
    the payload, one-sided, chunk by chunk as the NIC's arbiter says
    LANDED (imm)                →
                                ←       WRITE_ACK

Everything else (handshake, liveness, messages, small writes) is what it is over TCP. Each link has an agent of its
own: to destroy it is the one fence that holds on every fabric, and costs no other link anything.
"""

from dualpath.transport.rdma.endpoint import RdmaEndpoint
from dualpath.transport.rdma.nixl import NoRdma

__all__ = ["NoRdma", "RdmaEndpoint"]
