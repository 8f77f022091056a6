"""Who owns what runs beside: tasks and threads that are awaited to their ends."""

from dualpath.tasks.tasks import Tasks, finish, stop, together
from dualpath.tasks.threads import Threads

__all__ = ["Tasks", "Threads", "finish", "stop", "together"]
