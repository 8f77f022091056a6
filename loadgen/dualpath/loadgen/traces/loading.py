"""Trace files of any known format."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from dualpath.loadgen.traces.conversations import read_conversations
from dualpath.loadgen.traces.errors import TraceError
from dualpath.loadgen.traces.lines import read_lines
from dualpath.loadgen.traces.model import Trace
from dualpath.loadgen.traces.mooncake import read_mooncake
from dualpath.loadgen.traces.native import FORMAT, read_native


def load_trace(path: Path) -> Trace:
    """Read a trace: DualPath's own, Mooncake's or recorded conversations, told apart by the first line. Raises
    TraceError, which names the line that is wrong."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path} is empty")
    whole = chain((first,), lines)
    if first.fields.get("format") == FORMAT:
        return read_native(path, whole)
    if "hash_ids" in first.fields:
        return read_mooncake(path, whole)
    if "messages" in first.fields:
        return read_conversations(path, whole)
    raise TraceError(
        f'{path}, line {first.number}: is of no known format: a trace begins with {{"format": "{FORMAT}", …}}, '
        "has hash_ids (Mooncake's format), or messages (recorded conversations) on each line"
    )
