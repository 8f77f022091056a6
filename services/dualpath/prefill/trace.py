"""What happened when in a forward: the evidence that transfers overlap compute."""

from __future__ import annotations

import time


class ForwardTrace:
    """Marks of (event, layer, seconds since the forward began).

    Events, per layer: `arrive`, `arrived` (cached KV), `compute`, `computed`, `leave`, `left` (new KV). With
    several rows in a forward, an event occurs once for each.
    """

    def __init__(self) -> None:
        self.step = 0
        """Which of the engine's forwards it is; engines of a group count alike."""
        self._began = time.monotonic()
        self.marks: list[tuple[str, int, float]] = []

    def mark(self, event: str, layer: int) -> None:
        self.marks.append((event, layer, time.monotonic() - self._began))

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def intervals(self, begin: str, end: str) -> dict[int, tuple[float, float]]:
        """Per layer, from the first `begin` to the last `end`."""
        spans: dict[int, tuple[float, float]] = {}
        for event, layer, at in self.marks:
            if event == begin and layer not in spans:
                spans[layer] = (at, at)
            elif event == end and layer in spans:
                spans[layer] = (spans[layer][0], at)
        return spans

    def overlapped_layers(self) -> int:
        """Layers during whose compute another layer's KV was arriving or leaving."""
        compute = self.intervals("compute", "computed")
        moves = [
            (layer, span)
            for begin, end in (("arrive", "arrived"), ("leave", "left"))
            for layer, span in self.intervals(begin, end).items()
        ]
        return sum(
            any(other != layer and a < stop and start < b for other, (a, b) in moves)
            for layer, (start, stop) in compute.items()
        )

    def busy_s(self, begin: str, end: str) -> float:
        """Sum over the layers of the time from `begin` to `end`."""
        return sum(stop - start for start, stop in self.intervals(begin, end).values())
