"""Sizes and rates as people write them: `50MB/s`, `1GiB`, `400Gbps`."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*(/s)?\s*\Z")
_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_BIT_UNITS = {"kbps": 125, "mbps": 125_000, "gbps": 125_000_000}


def parse_bytes(text: str | int) -> int:
    """`"1.5GiB"` → 1610612736. Raises ValueError with an example in it."""
    if isinstance(text, int):
        return text
    match = _NUMBER.match(text)
    if match is None or match[3] or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write for example 512MiB, 2GB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_rate(text: str | int) -> int:
    """`"50MB/s"` or `"400Gbps"` → bytes per second. Raises ValueError with an example in it."""
    if isinstance(text, int):
        return text
    match = _NUMBER.match(text)
    if match is not None:
        unit = match[2].lower()
        if unit in _BIT_UNITS and not match[3]:
            return int(float(match[1]) * _BIT_UNITS[unit])
        if unit in _UNITS:
            return int(float(match[1]) * _UNITS[unit])
    raise ValueError(f"{text!r} is no rate; write for example 50MB/s, 2GiB/s or 400Gbps")
