"""Which engine gets the next request (paper §5). Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from dualpath.policy.api import EngineId, EngineView, Placement, PlacementPolicy, QueuedRequest


class _HeadFirst(PlacementPolicy):
    """FIFO from the head; each request goes to the engine that `_rank` puts first among those with room.

    Remembers when each engine was last given something, so that equal engines take turns even where
    requests come one at a time.
    """

    def __init__(self) -> None:
        self._given: dict[EngineId, int] = {}
        self._turn = 0

    def place(
        self, queue: Sequence[QueuedRequest], engines: Sequence[EngineView]
    ) -> list[Placement]:
        views = {view.engine: view for view in engines}
        placed: list[Placement] = []
        for request in queue:
            fitting = [view for view in views.values() if view.hbm_free >= request.needed_tokens]
            if not fitting:
                break
            view = min(fitting, key=self._rank)
            self._turn += 1
            self._given[view.engine] = self._turn
            views[view.engine] = replace(
                view,
                seq=view.seq + 1,
                tok=view.tok + request.tokens,
                hbm_free=view.hbm_free - request.needed_tokens,
            )
            placed.append(Placement(request.request_id, view.engine))
        return placed

    @abstractmethod
    def _rank(self, view: EngineView) -> tuple[int, ...]:
        """Least is best."""

    def _last_given(self, view: EngineView) -> int:
        return self._given.get(view.engine, 0)


class LeastTokens(_HeadFirst):
    """The engine with the fewest unfinished tokens `tok`; of equal ones the fewest requests `seq`; of
    those the one that has waited longest for work."""

    def _rank(self, view: EngineView) -> tuple[int, ...]:
        return view.tok, view.seq, self._last_given(view)


class RoundRobin(_HeadFirst):
    """Engines in turn, whatever their load; one without room is passed over until it has some."""

    def _rank(self, view: EngineView) -> tuple[int, ...]:
        return (self._last_given(view),)
