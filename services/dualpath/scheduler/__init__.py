"""The central scheduler: queues, placement, read paths, liveness (paper §5)."""

from dualpath.scheduler.service import SchedulerService

__all__ = ["SchedulerService"]
