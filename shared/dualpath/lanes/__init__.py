"""Virtual lanes and NICs (paper §4): who sends next, and how fast."""

from dualpath.lanes.api import Lane, Nic, Priority
from dualpath.lanes.nic import PacedNic

__all__ = ["Lane", "Nic", "PacedNic", "Priority"]
