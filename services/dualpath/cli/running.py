"""The cluster that a command is about."""

from __future__ import annotations

from pathlib import Path

from dualpath.cli.words import NOT_RUNNING, WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.record import ClusterRecord
from dualpath.cluster.stop import running_cluster
from dualpath.settings import load_settings, shell_path


def find_running(config: Path | None, home: Path | None) -> tuple[Home, ClusterRecord] | int:
    """The home that the settings name, and what runs on it. Where nothing does, or the settings are wrong, that is
    said, and the exit code returned."""
    try:
        settings = load_settings(config, home=home)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    place = Home(settings.home)
    record = running_cluster(place)
    if record is None:
        complain(f"no cluster runs on {shell_path(settings.home)}; --home names another place")
        return NOT_RUNNING
    return place, record
