"""Traces: made with the statistics of the paper's Table 2, or read from files."""

from dualpath.loadgen.traces.model import Message, Trace, Trajectory, Turn

__all__ = ["Message", "Trace", "Trajectory", "Turn"]
