"""`dualpath down`: stop the cluster that runs on a home."""

from __future__ import annotations

import os
import select
import signal

from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive, send
from dualpath.cluster.record import ClusterRecord, load_record

_MARGIN_S = 10.0


class NotStopped(Exception):
    """The cluster still runs; the text says what to do."""


def running_cluster(home: Home) -> ClusterRecord | None:
    """The cluster whose supervisor lives; None where none runs, or it was killed."""
    record = load_record(home)
    return record if record is not None and alive(record.supervisor) else None


def stop_cluster(home: Home) -> ClusterRecord | None:
    """Ask the supervisor to stop everything, and wait until it has ended. None where none runs.

    Raises NotStopped where it does not end, PermissionError where it is another user's.
    """
    record = running_cluster(home)
    if record is None:
        return None
    pid = record.supervisor.pid
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return record
    try:
        if not send(record.supervisor, signal.SIGTERM):
            return record
        limit_s = record.stop_s + _MARGIN_S
        # Readable once the process that the handle means has ended.
        if not select.select([handle], [], [], limit_s)[0]:
            raise NotStopped(
                f"the supervisor (pid {pid}) has not ended within {limit_s:g} s; `kill -9 {pid}` ends it, "
                "and with it every process of the cluster"
            )
    finally:
        os.close(handle)
    return record
