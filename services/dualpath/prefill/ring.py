"""The few layers of a request that are on the prefill device at a time (paper §2, layerwise prefill)."""

from __future__ import annotations

from collections.abc import Callable

from dualpath.memory.admission import ring_bytes
from dualpath.memory.arena import BufferRegion
from dualpath.memory.hbm import Budget
from dualpath.model.api import Backend, LayerView
from dualpath.transport.api import Endpoint


class Ring:
    """`depth` places of `[tokens, row]`; layer i uses place i mod depth. Open to a DE's pushes until closed.

    Takes its bytes from `budget` (the caller has seen that they are there) and gives them back in `close`.
    """

    def __init__(
        self,
        backend: Backend,
        endpoint: Endpoint,
        budget: Budget,
        *,
        tokens: int,
        depth: int,
        on_layer: Callable[[int], None],
    ) -> None:
        self.tokens = tokens
        self.depth = depth
        self._geometry = backend.geometry
        self._place_bytes = tokens * self._geometry.max_row_bytes
        self._endpoint = endpoint
        self._budget = budget
        self.nbytes = ring_bytes(self._geometry, tokens, depth)
        if not budget.try_take(self.nbytes):
            raise RuntimeError(f"a ring of {self.nbytes} bytes was begun without room for it")
        try:
            self.buffer = backend.allocate(self.nbytes)
        except BaseException:
            budget.give(self.nbytes)
            raise
        self._region = BufferRegion(self.buffer.wire, on_layer)
        self.key = endpoint.register(self._region)

    @property
    def arrivals(self) -> int:
        """It grows as long as something is pushed into the ring."""
        return self._region.frames

    def offset(self, layer: int, token: int = 0) -> int:
        """Where row `token` of `layer` lies in the buffer."""
        if self.depth >= self._geometry.n_layers:
            return self._geometry.flat_offset(self.tokens, layer, token)
        return (layer % self.depth) * self._place_bytes + token * self._geometry.row_bytes[layer]

    def rows(self, layer: int, start: int, stop: int) -> memoryview:
        """The wire window of rows [start, stop) of `layer`."""
        return self.buffer.wire[self.offset(layer, start) : self.offset(layer, stop)]

    def view(self, layer: int) -> LayerView:
        return LayerView(self.buffer, self.offset(layer))

    async def close(self) -> None:
        """Free the memory once nobody writes into it. All own writes out of it must have ended."""
        await self._endpoint.revoke(self.key)
        self.buffer.free()
        self._budget.give(self.nbytes)
