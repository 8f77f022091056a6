"""`dualpath scale`: a command writes down how many nodes a cluster is to have, and signals the supervisor."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import Home, write_private
from dualpath.cluster.output import Console
from dualpath.cluster.plan import NodeRole, Service
from dualpath.cluster.processes import send
from dualpath.cluster.record import ClusterRecord

SIGNAL = signal.SIGUSR1
NODE_ROLES: tuple[NodeRole, ...] = ("prefill", "decode")


class Wanted(msgspec.Struct, frozen=True):
    """So many nodes of each role, one at least."""

    prefill: int
    decode: int

    def of(self, role: NodeRole) -> int:
        return self.prefill if role == "prefill" else self.decode


def ask(home: Home, record: ClusterRecord, wanted: Wanted) -> bool:
    """Have the supervisor bring the cluster there; False where it has ended. What was asked for before no longer
    counts."""
    write_private(home.wanted_file, msgspec.json.encode(wanted))
    return send(record.supervisor, SIGNAL)


def asked(home: Home) -> Wanted | None:
    """What was asked for last; None where that cannot be read."""
    try:
        return msgspec.json.decode(home.wanted_file.read_bytes(), type=Wanted)
    except (OSError, msgspec.MsgspecError):
        return None


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
    """Brings a cluster's nodes to the number that was asked for last. `wake` it when somebody has asked."""

    def __init__(
        self,
        home: Home,
        console: Console,
        children: Mapping[str, Child],
        start: Callable[[Service], Awaitable[None]],
        on_change: Callable[[Wanted], None],
    ) -> None:
        """`children` are all that ever ran, by name; `start` starts one and returns when it is ready, or raises
        ChildFailed; `on_change` is told before nodes come and go."""
        self._home = home
        self._console = console
        self._children = children
        self._start = start
        self._on_change = on_change
        self._asked = asyncio.Event()
        self._draining: set[str] = set()

    def wake(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            if (wanted := asked(self._home)) is not None:
                await self._scale_to(wanted)

    async def _scale_to(self, wanted: Wanted) -> None:
        """Start the nodes that are missing, and wait for them; let those go that are too many, which takes as long as
        what they have to finish."""
        fresh: list[Service] = []
        surplus_names: list[str] = []
        for role in NODE_ROLES:
            nodes = [child for child in self._children.values() if child.role == role]
            working = [
                child.name
                for child in nodes
                if child.exit_status is None and child.name not in self._draining
            ]
            fresh += missing(role, wanted.of(role), working, [child.name for child in nodes])
            surplus_names += surplus(wanted.of(role), working)
        if fresh or surplus_names:
            self._on_change(wanted)
        for name in surplus_names:
            self._console.say(f"{name} is to finish what it has, and leave")
            self._draining.add(name)
            self._children[name].signal(signal.SIGTERM)
        if fresh:
            self._console.say(f"starting {', '.join(service.name for service in fresh)}")
        await asyncio.gather(*(self._add(service) for service in fresh))

    async def _add(self, service: Service) -> None:
        try:
            await self._start(service)
        except (ChildFailed, OSError) as error:
            self._console.alarm(f"the cluster goes on without {service.name}: {error}")
            if (child := self._children.get(service.name)) is not None:
                await child.stop(1.0)
