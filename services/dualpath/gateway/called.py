"""Answers that called functions, by the ids of their calls.

A template writes calls in its own way, seldom as the model did. So a call that a client sends back unchanged is
rendered as what the model said: then the prompt hits the blocks that it was generated in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from dualpath.gateway.tools import ToolCall

_MOST = 50_000
_MOST_CHARS = 16 << 20


@dataclass(frozen=True)
class Said:
    """`text` is what the client saw beside `calls`, `raw` all that the model said."""

    text: str
    calls: tuple[ToolCall, ...]
    raw: str


class Called:
    """Bounded; used by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._said: OrderedDict[tuple[str, str], Said] = OrderedDict()
        self._chars = 0

    def remember(self, salt: str, call_id: str, said: Said) -> None:
        """`call_id` is that of the first call."""
        with self._lock:
            self._said[salt, call_id] = said
            self._chars += len(said.raw)
            while len(self._said) > _MOST or self._chars > _MOST_CHARS:
                _, oldest = self._said.popitem(last=False)
                self._chars -= len(oldest.raw)

    def recall(self, salt: str, call_id: str, text: str, calls: Sequence[ToolCall]) -> str | None:
        """What the model said, where the client sends exactly that back."""
        with self._lock:
            said = self._said.get((salt, call_id))
            if said is None or said.text != text or said.calls != tuple(calls):
                return None
            self._said.move_to_end((salt, call_id))
            return said.raw
