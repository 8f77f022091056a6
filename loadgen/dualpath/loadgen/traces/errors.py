"""Why a trace cannot be read."""

from __future__ import annotations


class TraceError(Exception):
    """The text says which file, which line, what is wrong there and what was expected."""
