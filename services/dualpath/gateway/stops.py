"""Stop strings in a growing text: what may be shown, and where it ends. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed text in any portions; what `push` and `finish` return, end to end, is the text before the first stop
    string, or all of it where none came. The string that is complete first counts, of several the longest."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str, *, armed: bool = True) -> str:
        """Append `text`; return what is certain not to belong to a stop string. Strings that are complete while
        not `armed` are text like any other. After `stopped` nothing comes any more."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        seen, text = len(self._held), self._held + text
        if armed and (start := self._first(text, seen)) is not None:
            self.stopped, self._held = True, ""
            return text[:start]
        keep = max(overlap(text, stop) for stop in self._stops)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """No more text comes: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, seen: int) -> int | None:
        """Where the stop string begins that is complete first in `text`, after its first `seen` characters."""
        found = []
        for stop in self._stops:
            at = text.find(stop, max(seen - len(stop) + 1, 0))
            if at >= 0:
                found.append((at + len(stop), at))
        return min(found)[1] if found else None


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, but for all of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
