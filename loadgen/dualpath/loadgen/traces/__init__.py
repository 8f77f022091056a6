"""Traces: made with the statistics of the paper's Table 2, or read from files."""

from dualpath.loadgen.traces.errors import TraceError
from dualpath.loadgen.traces.loading import load_trace
from dualpath.loadgen.traces.model import Message, Trace, Trajectory, Turn
from dualpath.loadgen.traces.native import save_trace
from dualpath.loadgen.traces.stats import TraceStats, describe
from dualpath.loadgen.traces.table import TABLE_2, TableRow, make_trace, row_of

__all__ = [
    "TABLE_2",
    "Message",
    "TableRow",
    "Trace",
    "TraceError",
    "TraceStats",
    "Trajectory",
    "Turn",
    "describe",
    "load_trace",
    "make_trace",
    "row_of",
    "save_trace",
]
