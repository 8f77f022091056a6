"""`dualpath status`: what the supervisor wrote down, and what the scheduler says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from dualpath.bus import Bus, BusError
from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord
from dualpath.cluster.stop import running_cluster
from dualpath.settings import Settings
from dualpath.wire import control

_ANSWER_S = 5.0


@dataclass(frozen=True)
class Status:
    """`cluster` is None where the scheduler gave no answer; then `problem` says why."""

    record: ClusterRecord
    cluster: control.ClusterStatus | None
    problem: str | None = None

    @property
    def well(self) -> bool:
        """Everything that was started lives, is ready, and answers."""
        record = self.record
        return (
            record.state == "ready"
            and self.cluster is not None
            and all(alive(service.process) for service in record.services)
        )


async def read_status(home: Home) -> Status | None:
    """The state of the cluster on `home`; None where none runs."""
    record = running_cluster(home)
    if record is None:
        return None
    try:
        settings = Settings(**json.loads(home.settings_file.read_bytes()))
    except FileNotFoundError:
        return Status(record, None, "the cluster is only starting")
    if settings.nats_url is None:
        return Status(record, None, "the cluster is only starting: NATS does not run yet")
    try:
        async with asyncio.timeout(_ANSWER_S):
            return Status(record, await _ask_scheduler(settings))
    except (BusError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_ANSWER_S:g} s"
        return Status(record, None, f"the scheduler does not answer: {reason}")


async def _ask_scheduler(settings: Settings) -> control.ClusterStatus:
    assert settings.nats_url is not None
    bus = await Bus.connect(
        settings.nats_url, "status", user=settings.nats_user, password=settings.nats_password
    )
    try:
        answer = await bus.request(control.SCHEDULER, control.StatusRequest(), timeout_s=_ANSWER_S)
    finally:
        await bus.close()
    if not isinstance(answer, control.ClusterStatus):
        raise BusError(f"it answered with {type(answer).__name__}")
    return answer
