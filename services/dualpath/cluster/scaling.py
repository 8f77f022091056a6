"""`dualpath scale` and `drain`: a command writes down what is asked for, and signals the supervisor."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import Home, write_private
from dualpath.cluster.output import Console
from dualpath.cluster.plan import NodeRole, Service
from dualpath.cluster.processes import send
from dualpath.cluster.record import ClusterRecord

SIGNAL = signal.SIGUSR1
NODE_ROLES: tuple[NodeRole, ...] = ("prefill", "decode")


Count = Annotated[int, msgspec.Meta(ge=1)]


class Wanted(msgspec.Struct, frozen=True):
    """So many nodes of a role, one at least; None: as many as there are. Those named in `leave` are to go."""

    prefill: Count | None = None
    decode: Count | None = None
    leave: tuple[str, ...] = ()

    def of(self, role: NodeRole) -> int | None:
        return self.prefill if role == "prefill" else self.decode


def ask(home: Home, record: ClusterRecord, wanted: Wanted) -> bool:
    """Have the supervisor bring the cluster there, after what others have asked for; False where it has ended."""
    home.asks.mkdir(mode=0o700, exist_ok=True)
    name = f"{time.time_ns():020}-{os.getpid()}.json"
    write_private(home.asks / name, msgspec.json.encode(wanted))
    return send(record.supervisor, SIGNAL)


def take_asked(home: Home) -> list[Wanted]:
    """What was asked for since the last call, the oldest first; leaves out what cannot be read."""
    found = []
    for path in sorted(home.asks.glob("[0-9]*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            data = path.read_bytes()
            path.unlink()
            found.append(msgspec.json.decode(data, type=Wanted))
    return found


def missing(
    role: NodeRole, wanted: int, working: Iterable[str], used: Iterable[str]
) -> list[Service]:
    """Nodes to start where fewer than `wanted` are `working`. Names that were `used` are not used again: logs and
    decisions speak of them."""
    count = wanted - len(list(working))
    first = max((number(name) + 1 for name in used), default=0)
    return [Service(role, f"{role}-{first + k}") for k in range(count)]


def surplus(wanted: int, working: Iterable[str]) -> list[str]:
    """Nodes to drain where more than `wanted` are `working`: those that came last."""
    return sorted(working, key=number)[wanted:]


def number(name: str) -> int:
    """3 of `prefill-3`; −1 where a name has none."""
    found = re.search(r"-(\d+)$", name)
    return int(found.group(1)) if found else -1


class Scaler:
    """Starts and drains a cluster's nodes as commands ask for. `wake` it when somebody has asked."""

    def __init__(
        self,
        home: Home,
        console: Console,
        children: Mapping[str, Child],
        start: Callable[[Service], Awaitable[None]],
        on_change: Callable[[Mapping[NodeRole, int]], None],
    ) -> None:
        """`children` are all that ever ran, by name; `start` starts one and returns when it is ready, or raises
        ChildFailed; `on_change` is told how many there will be, before nodes come and go."""
        self._home = home
        self._console = console
        self._children = children
        self._start = start
        self._on_change = on_change
        self._asked = asyncio.Event()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._draining: set[str] = set()

    def wake(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._asked.wait()
                self._asked.clear()
                for wanted in take_asked(self._home):
                    self._bring(wanted, group)
                    # The nodes that it starts are children then, which the next order counts.
                    await asyncio.sleep(0)

    def _bring(self, wanted: Wanted, group: asyncio.TaskGroup) -> None:
        """Have the nodes started that are missing; tell those to go that are too many or named, but never the last of
        a role, and nobody twice: that would mean at once."""
        fresh: list[Service] = []
        leaving: list[str] = []
        counts: dict[NodeRole, int] = {}
        for role in NODE_ROLES:
            nodes = [child for child in self._children.values() if child.role == role]
            working = [
                child.name
                for child in nodes
                if child.exit_status is None and child.name not in self._draining
            ]
            named = [name for name in working if name in wanted.leave]
            if len(named) == len(working) and wanted.of(role) is None:
                for name in named[:1]:
                    self._console.say(f"{name} stays: it is the last {role} node")
                named = named[1:]
            working = [name for name in working if name not in named]
            count = counts[role] = wanted.of(role) or len(working)
            fresh += missing(role, count, working, [child.name for child in nodes])
            leaving += named + surplus(count, working)
        if fresh or leaving:
            self._on_change(counts)
        for name in leaving:
            self._draining.add(name)
            group.create_task(self._let_go(name), name=f"leaving of {name}")
        if fresh:
            self._console.say(f"starting {', '.join(service.name for service in fresh)}")
        for service in fresh:
            start = group.create_task(self._add(service), name=f"start of {service.name}")
            self._starting[service.name] = start

    async def _let_go(self, name: str) -> None:
        """One that is starting does that first: before, it knows of no order to leave."""
        if (starting := self._starting.get(name)) is not None:
            await asyncio.wait({starting})
        if (child := self._children.get(name)) is not None and child.exit_status is None:
            self._console.say(f"{name} is to finish what it has, and leave")
            child.signal(signal.SIGTERM)

    async def _add(self, service: Service) -> None:
        try:
            await self._start(service)
        except (ChildFailed, OSError) as error:
            self._console.alarm(f"the cluster goes on without {service.name}: {error}")
            if (child := self._children.get(service.name)) is not None:
                await child.stop(1.0)
        finally:
            del self._starting[service.name]
