"""Bytes that pass a node's SNIC without its endpoint: the kernel or a library moves them, the NIC paces them."""

from __future__ import annotations

from collections.abc import Iterator

from dualpath.lanes.api import Lane, Nic


async def charge_read(nic: Nic, nbytes: int) -> None:
    """Return when the NIC could have taken `nbytes` of KV in, behind what it takes already."""
    for chunk in _chunks(nic, nbytes):
        await nic.receive(Lane.LOW, chunk)


async def charge_write(nic: Nic, nbytes: int) -> None:
    """Return when the NIC may have sent `nbytes` of KV, behind what it sends already."""
    for chunk in _chunks(nic, nbytes):
        await nic.send(Lane.LOW, chunk)


def _chunks(nic: Nic, nbytes: int) -> Iterator[int]:
    for start in range(0, nbytes, nic.quantum_bytes):
        yield min(nic.quantum_bytes, nbytes - start)
