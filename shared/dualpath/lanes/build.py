"""NICs as the settings describe them."""

from __future__ import annotations

from dualpath.lanes.nic import PacedNic
from dualpath.settings import Settings


def nic_of(settings: Settings, name: str, bytes_per_s: float | None = None) -> PacedNic:
    """A NIC of this process, paced where a bandwidth is given."""
    return PacedNic(
        name,
        bytes_per_s,
        quantum_bytes=settings.quantum,
        lanes=settings.lanes,
        high_share=settings.high_share,
        tables=settings.vl_tables if settings.arbitration == "vl-tables" else None,
    )
