"""`dualpath status`: what the supervisor wrote down, and what the scheduler and each process say."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import msgspec

from dualpath.bus import Bus, BusError
from dualpath.cluster.home import Home
from dualpath.cluster.processes import alive
from dualpath.cluster.record import ClusterRecord, ServiceRecord
from dualpath.cluster.stop import running_cluster
from dualpath.settings import Settings
from dualpath.wire import control
from dualpath.wire.types import NodeStatus

_ANSWER_S = 5.0


@dataclass(frozen=True)
class Status:
    """`cluster` is None where the scheduler gave no answer; then `problem` says why. `processes` are those that
    answered, by name: their pools and NICs (nodes tell them the scheduler as well, a moment before)."""

    record: ClusterRecord
    cluster: control.ClusterStatus | None
    problem: str | None = None
    processes: dict[str, NodeStatus] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Everything that was started lives, is ready, and answers."""
        record = self.record
        return (
            record.state == "ready"
            and self.cluster is not None
            and all(alive(service.process) for service in record.services if not service.has_left)
            and all(
                service.name in self.processes
                for service in record.services
                if service.ready and not service.has_left
            )
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
    (cluster, problem), processes = await asyncio.gather(
        _ask_cluster(settings), _ask_processes(settings.host, record.services)
    )
    return Status(record, cluster, problem, processes)


async def _ask_cluster(settings: Settings) -> tuple[control.ClusterStatus | None, str | None]:
    """The scheduler's answer, or why there is none."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await _ask_scheduler(settings), None
    except (BusError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_ANSWER_S:g} s"
        return None, f"the scheduler does not answer: {reason}"


async def _ask_processes(host: str, services: tuple[ServiceRecord, ...]) -> dict[str, NodeStatus]:
    """The status of each process that gives it in time."""
    ports = {service.name: service.ready.http_port for service in services if service.ready}
    answers = await asyncio.gather(
        *(asyncio.to_thread(_ask_process, host, port) for port in ports.values())
    )
    return {name: answer for name, answer in zip(ports, answers, strict=True) if answer}


def _ask_process(host: str, port: int) -> NodeStatus | None:
    # Not urllib: it would ask the proxies of the environment.
    connection = HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/status")
        return msgspec.json.decode(connection.getresponse().read(), type=NodeStatus)
    except (OSError, HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


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
