"""The cluster that `dualpath demo` starts for itself, and a watch of its NICs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from dualpath.cli.started import started
from dualpath.cluster.home import Home
from dualpath.cluster.record import ClusterRecord
from dualpath.cluster.status import read_status
from dualpath.model.locate import model_directory
from dualpath.settings import CONFIG_VARIABLE, ENV_PREFIX, load_settings
from dualpath.wire.types import NicUse

EMULATED_TOKEN_S = 2e-4
"""Time of a computed prompt token on the demo's synthetic engines: of a large model rather than of none."""

_EMULATION = f"{ENV_PREFIX}SYNTHETIC__TOKEN_S"
_WATCH_S = 0.5


@contextmanager
def own_cluster(model: str) -> Iterator[tuple[Home, ClusterRecord]]:
    """`dualpath up` in a home that exists only as long as it is needed, with the model of the user's own home where
    that was made there already. Settings of the environment hold, but for model, home and port. Raises NotStarted,
    and ValueError for settings that are wrong."""
    made = model_directory(load_settings(model=model))
    with TemporaryDirectory(prefix="dualpath-demo-") as directory:
        home, log = Home(Path(directory) / "home"), Path(directory) / "up.log"
        if made.is_dir():
            home.root.mkdir()
            home.models.symlink_to(made.parent)
        environment = dict(os.environ)
        if emulates(model):
            environment[_EMULATION] = str(EMULATED_TOKEN_S)
        with started(home, ["--model", model], environment, log) as record:
            yield home, record


def emulates(model: str) -> bool:
    """Does the demo say how fast the engines are? Not where they are real, or settings of the user's say it."""
    return model == "synthetic" and not {_EMULATION, CONFIG_VARIABLE} & os.environ.keys()


class NicWatch:
    """Asks the cluster on a home for its NICs, twice a second, in a thread that `__exit__` ends."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._latest: tuple[NicUse, ...] = ()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="NIC watch")

    def latest(self) -> tuple[NicUse, ...]:
        return self._latest

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_WATCH_S):
            self._read()
        # What was moved since the last look belongs into the last picture.
        self._read()

    def _read(self) -> None:
        try:
            status = asyncio.run(read_status(self._home))
        except OSError:
            # Its files are there or not as it starts and ends; the last picture stays.
            return
        if status is not None:
            processes = status.processes.values()
            self._latest = tuple(nic for process in processes for nic in process.nics)
