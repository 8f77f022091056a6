"""The ids that were generated, by the text before them.

A client sends an earlier answer back as text, and text may be tokenized in another way than it was generated: from
there on no stored block would be hit. So the gateway remembers what it gave out, within a bound.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

_ENTRY_BYTES = 256
"""About what an entry takes besides its ids."""


@dataclass(frozen=True)
class Known:
    """Characters [start, stop) of a prompt are an earlier answer, generated as `ids`."""

    start: int
    stop: int
    ids: Sequence[int]


@dataclass(frozen=True)
class Recall:
    """What is known of a prompt's earlier answers. Of those that are not, `unknown` are in no memory (it was full, or
    another gateway's, or never generated here); `changed` were given to this prompt in other words: the client or
    the chat template has edited them."""

    known: tuple[Known, ...] = ()
    unknown: int = 0
    changed: int = 0


@dataclass(frozen=True)
class _Answer:
    digest: bytes
    chars: int
    ids: array[int]


class Emitted:
    """Used by several threads. `marker` is the text with which a template opens each answer."""

    def __init__(self, marker: str, capacity_bytes: int) -> None:
        self._marker = marker
        self._capacity = capacity_bytes
        self._lock = Lock()
        self._answers: OrderedDict[bytes, list[_Answer]] = OrderedDict()
        self.nbytes = 0

    def remember(self, prompt_key: bytes, text: str, ids: Iterable[int]) -> None:
        """After the prompt of `prompt_key` exactly `text` was generated, as `ids`."""
        answer = _Answer(_digest(text), len(text), array("i", ids))
        if not answer.ids:
            return
        with self._lock:
            answers = self._answers.setdefault(prompt_key, [])
            self._answers.move_to_end(prompt_key)
            if any(known.digest == answer.digest for known in answers):
                return
            answers.append(answer)
            self.nbytes += _size(answer)
            while self.nbytes > self._capacity:
                _, oldest = self._answers.popitem(last=False)
                self.nbytes -= sum(map(_size, oldest))

    def recall(self, text: str, salt: str) -> Recall:
        """Which earlier answers are in the prompt `text`; those of another `salt` are not known."""
        known: list[Known] = []
        unknown = changed = 0
        for start, key in self._openings(text, salt):
            if known and start < known[-1].stop:
                continue  # An answer that speaks of the marker.
            answers = self._get(key)
            found = [
                answer
                for answer in answers or ()
                if _digest(text[start : start + answer.chars]) == answer.digest
            ]
            if found:
                best = max(found, key=lambda answer: answer.chars)
                known.append(Known(start, start + best.chars, best.ids))
            elif answers:
                changed += 1
            else:
                unknown += 1
        return Recall(tuple(known), unknown, changed)

    def _openings(self, text: str, salt: str) -> Iterator[tuple[int, bytes]]:
        """Where earlier answers begin, and the key of all before."""
        state, done = _salted(salt), 0
        at = text.find(self._marker)
        while at >= 0 and (start := at + len(self._marker)) < len(text):
            state.update(text[done:start].encode())
            done = start
            yield start, state.copy().digest()
            at = text.find(self._marker, start)

    def _get(self, key: bytes) -> list[_Answer] | None:
        with self._lock:
            answers = self._answers.get(key)
            if answers is None:
                return None
            self._answers.move_to_end(key)
            return list(answers)


def prompt_key(text: str, salt: str) -> bytes:
    """The name of a prompt."""
    state = _salted(salt)
    state.update(text.encode())
    return state.digest()


def _salted(salt: str) -> hashlib.blake2b:
    data = salt.encode()
    return hashlib.blake2b(len(data).to_bytes(8, "little") + data, digest_size=16)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _size(answer: _Answer) -> int:
    return _ENTRY_BYTES + answer.ids.itemsize * len(answer.ids)
