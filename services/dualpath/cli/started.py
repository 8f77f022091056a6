"""`dualpath up` as a child of this process: for a demo, or a benchmark's clusters."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dualpath.cluster.home import Home
from dualpath.cluster.record import ClusterRecord, load_record
from dualpath.telemetry.leash import leashed

_TICK_S = 0.1
_STOP_S = 30.0
_TAIL_LINES = 12


class NotStarted(Exception):
    """The cluster did not start; the text is what it said last."""


@contextmanager
def started(
    home: Home,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    behind: bool = False,
) -> Iterator[ClusterRecord]:
    """A cluster on `home`, an API port of its own, for as long as the block runs; what it says goes to `log`. It dies
    with this process; `behind`: it gives way to it on a busy CPU. To be entered on a thread that outlives the block.
    Raises NotStarted."""
    command = [sys.executable, "-m", "dualpath.cli.main", "up", *arguments]
    command += ["--home", str(home.root), "--port", "0"]
    if behind and (nice := shutil.which("nice")):
        command = [nice, "-n", "5", *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            leashed(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process, which then stops its cluster in order.
            start_new_session=True,
        )
    try:
        yield _until_ready(process, home, log)
    finally:
        _stop(process)


def _until_ready(process: subprocess.Popen[bytes], home: Home, log: Path) -> ClusterRecord:
    """The supervisor bounds each step of a start itself (`start_s`)."""
    while True:
        record = load_record(home)
        if record is not None and record.state == "ready":
            return record
        try:
            process.wait(_TICK_S)
        except subprocess.TimeoutExpired:
            continue
        lines = log.read_text("utf-8", "replace").splitlines()
        raise NotStarted("\n".join(["the cluster did not start:", *lines[-_TAIL_LINES:]]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Whoever asks this process to end, it does as after Ctrl-C: clusters are stopped, and their homes removed."""
    with _handled(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def ends_afterwards() -> Iterator[None]:
    """Whoever asks this process to end while the block runs is heard after it."""
    asked = list[int]()
    with _handled(
        lambda number, _: asked.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    ):
        yield
    if asked:
        raise KeyboardInterrupt


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
