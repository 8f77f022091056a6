"""How a shard's disk does: refusals are counted, and the first of a row is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)


class DiskHealth:
    """Counters of a store, and which kinds of access (`read`, `write`, `sync`) the disk refuses at present."""

    def __init__(self, root: Path) -> None:
        self.counters: Counter[str] = Counter()
        self._root = root
        self._failing: set[str] = set()

    def failed(self, what: str, error: OSError) -> None:
        """Count a refusal; warn about the first of a row only."""
        self.counters[f"{what}_errors"] += 1
        if what not in self._failing:
            self._failing.add(what)
            log.warning(
                f"the disk refuses to {what} blocks", root=str(self._root), error=str(error)
            )

    def worked(self, what: str) -> None:
        if what in self._failing:
            self._failing.discard(what)
            log.info(f"the disk {what}s blocks again", root=str(self._root))
