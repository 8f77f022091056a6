"""Attempts to make links, which all who want the same link share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from dualpath.lanes.api import Lane
from dualpath.transport.api import LinkError
from dualpath.transport.link import Link
from dualpath.wire.types import Address


@dataclass(frozen=True)
class _Dial:
    peer: Address
    task: asyncio.Task[Link]
    began_at: float


class Dials:
    """At most one attempt per peer and lane is under way. `spawn` owns the tasks."""

    def __init__(
        self,
        dial: Callable[[Address, Lane], Coroutine[Any, Any, Link]],
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
        deadline_s: float,
    ) -> None:
        self._dial = dial
        self._spawn = spawn
        self._deadline_s = deadline_s
        self._under_way: dict[tuple[str, Lane], _Dial] = {}

    def dialing(self, endpoint_id: str, lane: Lane) -> bool:
        return (endpoint_id, lane) in self._under_way

    async def link(self, peer: Address, lane: Lane) -> Link:
        """Raises LinkError, PeerRefused. Cancelling leaves the attempt to the others."""
        place = (peer.endpoint_id, lane)
        came_at = asyncio.get_running_loop().time()
        while (dial := self._under_way.get(place)) is not None:
            await asyncio.wait([dial.task])
            # What fails after most of its time had gone by before does not speak for a fresh attempt.
            recent = came_at - dial.began_at < self._deadline_s / 2
            if dial.peer == peer and (recent or _succeeded(dial.task)):
                break
        else:
            dial = _Dial(peer, self._spawn(self._dial(peer, lane)), came_at)
            self._under_way[place] = dial
            dial.task.add_done_callback(lambda _: self._under_way.pop(place, None))
            await asyncio.wait([dial.task])
        if dial.task.cancelled():
            raise LinkError(f"the link to {peer.endpoint_id} was given up: this endpoint is closed")
        return dial.task.result()


def _succeeded(task: asyncio.Task[Link]) -> bool:
    return not task.cancelled() and task.exception() is None
