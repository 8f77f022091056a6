"""What `up`, `status` and `down` do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dualpath.cli.words import NOT_RUNNING, WRONG_USE, complain
from dualpath.cluster.checks import CannotStart
from dualpath.cluster.detach import run_detached
from dualpath.cluster.home import Home
from dualpath.cluster.nats_server import NAME as NATS
from dualpath.cluster.output import Console
from dualpath.cluster.plan import start_stages
from dualpath.cluster.stop import NotStopped, stop_cluster
from dualpath.settings import Settings, load_settings, shell_path


def up(config: Path | None, given: Mapping[str, Any], *, detach: bool) -> int:
    """Exit code: 0 stopped (or detached), 1 failed, 2 cannot be started as asked."""
    settings = _settings(config, given)
    if settings is None:
        return WRONG_USE
    if not detach:
        return _supervise(settings, None)
    log = Home(settings.home).log_file("supervisor")
    return run_detached(log, lambda on_ready: _supervise(settings, on_ready))


def _supervise(settings: Settings, on_ready: Callable[[], None] | None) -> int:
    from dualpath.cluster.supervisor import Supervisor

    names = [NATS, *(service.name for stage in start_stages(settings) for service in stage)]
    console = Console(names, json_lines=settings.log_format == "json")

    def in_background() -> None:
        console.quiet()
        if on_ready is not None:
            on_ready()

    supervisor = Supervisor(settings, console, on_ready=None if on_ready is None else in_background)
    try:
        return asyncio.run(supervisor.run())
    except CannotStart as error:
        complain(str(error))
        return WRONG_USE


def status(config: Path | None, home: Path | None, *, as_json: bool) -> int:
    settings = _settings(config, {"home": home})
    if settings is None:
        return WRONG_USE
    from dualpath.cli.tables import print_status
    from dualpath.cluster.status import read_status

    try:
        found = asyncio.run(read_status(Home(settings.home)))
    except PermissionError as error:
        complain(str(error))
        return 1
    if found is None:
        complain(
            f"no cluster runs on {shell_path(settings.home)}; `dualpath up` starts one, "
            "--home names another place"
        )
        return NOT_RUNNING
    if as_json:
        print(msgspec.json.encode(dataclasses.asdict(found)).decode())
    else:
        print_status(found)
    return 0 if found.well else 1


def down(config: Path | None, home: Path | None) -> int:
    settings = _settings(config, {"home": home})
    if settings is None:
        return WRONG_USE
    try:
        record = stop_cluster(Home(settings.home))
    except (NotStopped, PermissionError) as error:
        complain(str(error))
        return 1
    if record is None:
        print(f"no cluster runs on {shell_path(settings.home)}")
    else:
        print(
            f"stopped the cluster on {shell_path(settings.home)} ({len(record.services)} processes)"
        )
    return 0


def _settings(config: Path | None, given: Mapping[str, Any]) -> Settings | None:
    try:
        return load_settings(config, **given)
    except ValueError as error:
        complain(str(error))
        return None
