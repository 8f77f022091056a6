"""Which link leads to which peer."""

from __future__ import annotations

import asyncio

from dualpath.lanes.api import Lane
from dualpath.transport.link import Link
from dualpath.wire.types import Address


class Routes:
    """At most one live link per life of a peer and lane, so frames of an older one never land after
    those of a newer: an older one is cut before the newer is used."""

    def __init__(self) -> None:
        self.links: set[Link] = set()
        self._by_life: dict[tuple[str, str, Lane], Link] = {}
        self._latest: dict[tuple[str, Lane], Link] = {}
        self._last_ids: dict[tuple[str, Lane], str] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def find(self, peer: Address, lane: Lane) -> Link | None:
        """The live link to `peer`; to whichever life of it, where its incarnation is empty."""
        if peer.incarnation:
            link = self._by_life.get((peer.endpoint_id, peer.incarnation, lane))
        else:
            link = self._latest.get((peer.endpoint_id, lane))
        return link if link is not None and link.lost is None else None

    def last_id(self, peer: Address, lane: Lane) -> str:
        """The id of the last link to the peer, live or not; empty where there was none."""
        return self._last_ids.get((peer.endpoint_id, lane), "")

    def other_lives(self, peer: Address) -> list[Link]:
        """The live links to this endpoint in other incarnations of it."""
        return [
            link
            for link in self.links
            if link.peer.endpoint_id == peer.endpoint_id
            and link.peer.incarnation != peer.incarnation
            and link.lost is None
        ]

    def add(self, link: Link) -> None:
        """The peer's earlier life, if it is still linked, is cut off."""
        for other in self.other_lives(link.peer):
            other.fail("the peer has restarted: a later life of it is here")
        life, place = self._keys(link)
        older = self._by_life.get(life)
        if older is not None:
            older.fail("a newer connection to the peer replaced it")
        self.links.add(link)
        self._by_life[life] = link
        self._latest[place] = link
        self._last_ids[place] = link.link_id
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def remove(self, link: Link) -> None:
        life, place = self._keys(link)
        self.links.discard(link)
        if self._by_life.get(life) is link:
            del self._by_life[life]
        if self._latest.get(place) is link:
            del self._latest[place]

    async def arrival(self, timeout_s: float) -> None:
        """Wait for the next link, at most so long."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await asyncio.wait([waiting], timeout=timeout_s)

    @staticmethod
    def _keys(link: Link) -> tuple[tuple[str, str, Lane], tuple[str, Lane]]:
        peer = link.peer
        return (peer.endpoint_id, peer.incarnation, link.lane), (peer.endpoint_id, link.lane)
