"""The one process at a time that makes room in a directory. Blocking calls, for one thread."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import msgspec

from dualpath.kvstore.directory.budget import Report, headroom_bytes, share_out
from dualpath.kvstore.directory.census import Holdings, tidy
from dualpath.kvstore.directory.layout import KEEPER_LOCK, each, replace_file
from dualpath.kvstore.lock import StoreInUse
from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)

CLIENT_LOST_S = 30.0
"""A client that has reported nothing for so long is dead, and the room that it was given is free again."""

TIDY_S = 60.0
REST = 10
"""After counting all blocks the keeper rests for so many times what that took."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Census(msgspec.Struct, frozen=True):
    """What the keeper found, and up to which count of bytes each client may write."""

    number: int
    nbytes: int
    blocks: int
    limits: dict[str, int]


class KeeperLock:
    """Held by one process at a time, until `close` or its death. Where a file system has no locks, by none."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd: int | None = None
        self._locks = True

    def acquire(self) -> bool:
        """Whether this process has it now. Raises OSError."""
        if self._fd is not None or not self._locks:
            return self._locks
        fd = os.open(self._root / KEEPER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_LOCKS:
                self._locks = False
                log.warning(
                    "no locks on this file system: nothing is removed, run `dualpath store gc` in turn",
                    root=str(self._root),
                )
                return False
            if error.errno == errno.EWOULDBLOCK:
                return False
            raise
        self._fd = fd
        return True

    def demand(self) -> None:
        """As `acquire`. Raises StoreInUse where another process has it."""
        if not self.acquire() and self._locks:
            raise StoreInUse(
                f"a process of a cluster makes room in {self._root}; stop the clusters that use it first"
            )

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Keeper:
    """Counts blocks, removes the oldest, and shares out room."""

    def __init__(self, root: Path, capacity_bytes: int | None, ttl_s: float | None) -> None:
        self._root = root
        self._capacity_bytes = capacity_bytes
        self._ttl_s = ttl_s
        self._lock = KeeperLock(root)
        self._reports: dict[str, tuple[Report, float]] = {}
        """By client: its report, and when that was last another one."""
        self._counted: dict[str, int] | None = None
        """What each had stored when blocks were counted."""
        self._last = Census(0, 0, 0, {})
        """Of this keeper."""
        self._next_s = 0.0
        self._tidy_s = 0.0

    def turn(self) -> None:
        """Do what is due, if this process is the keeper, or can be. Raises OSError."""
        if not self._lock.acquire():
            return
        now = time.monotonic()
        if now >= self._tidy_s:
            tidy(self._root)
            self._tidy_s = now + TIDY_S
        if self._capacity_bytes is None and self._ttl_s is None:
            return
        reports = self._read_reports(now)
        finished = {name: report.finished_bytes for name, report in reports.items()}
        same = finished == self._counted and self._ttl_s is None
        if now < self._next_s or (same and not self._is_stuck(reports)):
            return
        self._keep(reports)
        self._counted = finished
        self._next_s = now + REST * (time.monotonic() - now)

    def _is_stuck(self, reports: dict[str, Report]) -> bool:
        """Whether a client that has heard of the last census has no room: blocks were under a lease then, or it had
        not heard of the one before, and kept its limit."""
        return any(
            report.census == self._last.number
            and self._last.limits.get(name, 0) - report.finished_bytes < report.block_bytes
            for name, report in reports.items()
        )

    def _keep(self, reports: dict[str, Report]) -> None:
        holdings = Holdings(self._root)
        before = read_census(self._root) or Census(0, 0, 0, {})
        since = None if self._ttl_s is None else time.time_ns() - int(self._ttl_s * 1e9)
        limits: dict[str, int] = {}
        if self._capacity_bytes is None:
            removed = holdings.make_room(holdings.nbytes, since)
        else:
            headroom = headroom_bytes(self._capacity_bytes, reports)
            removed = holdings.make_room(self._capacity_bytes - headroom, since)
            limits = share_out(
                self._capacity_bytes, holdings.nbytes, reports, before.limits, before.number
            )
        if removed:
            log.debug("blocks made room", root=str(self._root), blocks=removed)
        self._last = census = Census(
            before.number + 1, holdings.nbytes, len(holdings) - removed, limits
        )
        replace_file(self._root / "census.json", self._root, msgspec.json.encode(census))

    def _read_reports(self, now: float) -> dict[str, Report]:
        """Of the clients that live; the files of the others are removed."""
        found: dict[str, tuple[Report, float]] = {}

        def read(entry: os.DirEntry[str]) -> None:
            report = read_report(Path(entry.path))
            known = self._reports.get(entry.name)
            if report is None:
                return
            changed = now if known is None or known[0].beat != report.beat else known[1]
            if now - changed > CLIENT_LOST_S:
                os.unlink(entry.path)
            else:
                found[entry.name] = (report, changed)

        each(self._root / "clients", read)
        self._reports = found
        return {name: report for name, (report, _) in found.items()}

    def close(self) -> None:
        self._lock.close()


def read_report(path: Path) -> Report | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError:
        return None


def read_census(root: Path) -> Census | None:
    """The last one; None where there is none. Raises OSError."""
    try:
        return msgspec.json.decode((root / "census.json").read_bytes(), type=Census)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
