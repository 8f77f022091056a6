"""Sizes and rates as people write them: `50MB/s`, `1GiB`, `400Gbps`."""

from __future__ import annotations

import re
from typing import TypeGuard

_NUMBER = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*(/s)?\s*\Z")
_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_BIT_UNITS = {"kbps": 125, "mbps": 125_000, "gbps": 125_000_000}


def parse_bytes(given: object) -> int:
    """`"1.5GiB"` → 1610612736; an int is what it is. Raises ValueError with an example in it for all else."""
    if _is_int(given):
        return given
    match = _match(given)
    if match is None or match[3] or match[2].lower() not in _UNITS:
        raise ValueError(f"{given!r} is no size; write for example 512MiB, 2GB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_rate(given: object) -> int:
    """`"50MB/s"` or `"400Gbps"` → bytes per second; an int is that already. Raises ValueError as `parse_bytes`."""
    if _is_int(given):
        return given
    match = _match(given)
    if match is not None:
        unit = match[2].lower()
        if unit in _BIT_UNITS and not match[3]:
            return int(float(match[1]) * _BIT_UNITS[unit])
        if unit in _UNITS:
            return int(float(match[1]) * _UNITS[unit])
    raise ValueError(f"{given!r} is no rate; write for example 50MB/s, 2GiB/s or 400Gbps")


def _is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _match(given: object) -> re.Match[str] | None:
    return _NUMBER.match(given) if isinstance(given, str) else None
