"""What a store over a directory does beside its calls: it reports, hears how much it may write, and keeps the
directory if no other process does."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from dualpath.kvstore.directory.budget import Budget, Report
from dualpath.kvstore.directory.keeper import Census, Keeper, read_census
from dualpath.kvstore.directory.layout import replace_file
from dualpath.kvstore.health import DiskHealth
from dualpath.tasks import Threads

TURN_S = 1.0
HURRY_S = 0.1
"""Turns are no closer together than this, also where there is no room."""

BEAT_TURNS = 5
"""A client with nothing new to say reports every so many turns."""


class Upkeep:
    """Belongs to one event loop; its owner runs `run` as a task."""

    def __init__(
        self,
        root: Path,
        health: DiskHealth,
        *,
        block_bytes: int,
        capacity_bytes: int | None,
        ttl_s: float | None,
    ) -> None:
        """`block_bytes` is what a block takes."""
        self.budget = Budget(limited=capacity_bytes is not None)
        self._root = root
        self._health = health
        self._block_bytes = block_bytes
        self._limited = capacity_bytes is not None
        self._keeper = Keeper(root, capacity_bytes, ttl_s)
        self._id = secrets.token_hex(8)
        self._threads = Threads(1, "keeper")
        self._full = asyncio.Event()
        self._beat = 0
        self._reported: Report | None = None
        self._closed = False

    def hurry(self) -> None:
        """There is no room: look now whether there is more."""
        self._full.set()

    async def run(self) -> None:
        while True:
            await self.turn()
            await asyncio.sleep(HURRY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_S - HURRY_S):
                    await self._full.wait()
            self._full.clear()

    async def turn(self) -> None:
        self._beat += 1
        report = self.budget.report(self._beat, self._block_bytes)
        try:
            census = await self._threads.run(partial(self._turn, report))
        except OSError as error:
            self._health.failed("keep", error)
            return
        self._health.worked("keep")
        if census is None or self._id not in census.limits or census.number == self.budget.census:
            return
        self.budget.limit_bytes = census.limits[self._id]
        self.budget.census = census.number
        # At once: a keeper that counts again before it knows that this was heard leaves the limit as it is.
        self._beat += 1
        report = self.budget.report(self._beat, self._block_bytes)
        try:
            await self._threads.run(partial(self._report, report))
        except OSError as error:
            self._health.failed("keep", error)

    def _report(self, report: Report) -> None:
        self._clients.mkdir(parents=True, exist_ok=True)
        replace_file(self._clients / self._id, self._root, msgspec.json.encode(report))
        self._reported = report

    def _turn(self, report: Report) -> Census | None:
        if self._limited and self._is_news(report):
            self._report(report)
        self._root.mkdir(parents=True, exist_ok=True)
        self._keeper.turn()
        return read_census(self._root) if self._limited else None

    def _is_news(self, report: Report) -> bool:
        last = self._reported
        return last is None or (
            report.beat - last.beat >= BEAT_TURNS
            or (report.finished_bytes, report.census) != (last.finished_bytes, last.census)
        )

    @property
    def _clients(self) -> Path:
        return self._root / "clients"

    async def close(self) -> None:
        """Leave: what this client was given and has not used is free then. Once more does nothing."""
        if self._closed:
            return
        self._closed = True

        def leave() -> None:
            (self._clients / self._id).unlink(missing_ok=True)
            self._keeper.close()

        try:
            await self._threads.run(leave)
        except OSError as error:
            self._health.failed("keep", error)
        self._threads.close()
