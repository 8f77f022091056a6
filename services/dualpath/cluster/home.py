"""Where a local cluster keeps things: everything is under one directory, its *home*."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dualpath.cluster.invocation import command_on


class HomeBusy(Exception):
    """Another cluster runs on this home."""


@dataclass(frozen=True)
class Home:
    """Paths below `root`. `run/` is readable by its owner only: it holds the cluster's secrets."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def settings_file(self) -> Path:
        return self.run / "settings.json"

    @property
    def nats_file(self) -> Path:
        return self.run / "nats.conf"

    @property
    def certificate_file(self) -> Path:
        return self.run / "links.crt"

    @property
    def key_file(self) -> Path:
        return self.run / "links.key"

    @property
    def record_file(self) -> Path:
        return self.run / "cluster.json"

    @property
    def asks(self) -> Path:
        """What commands ask the supervisor for, a file each."""
        return self.run / "asks"

    @property
    def lock_file(self) -> Path:
        return self.run / "lock"

    def log_file(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Make the directories. Raises OSError where this user may not."""
        for path in (self.models, self.store, self.logs):
            path.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(mode=0o700, exist_ok=True)
        self.run.chmod(0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home for this process; the kernel lets go when it dies. Raises HomeBusy, OSError."""
        self.create()
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
                raise HomeBusy(
                    f"a cluster already runs on {self.root} (supervisor pid {holder or 'unknown'}); "
                    f"stop it with `{command_on(self.root, 'down')}`, or choose another --home"
                ) from None
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Put `data` at `path`, at once and whole, readable by its owner only."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.replace(path)
