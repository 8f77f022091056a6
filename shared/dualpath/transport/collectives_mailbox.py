"""Where a member of a group takes what the others write to it: two places per sender, and who has left."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)

MAX_MEMBERS = 1 << 14
MAX_PIECE_BYTES = (1 << 32) - 1
_NUMBERS = 1 << 16
_GONE = 1 << 63
PROBE = 1 << 62
"""The immediate data of a write that says nothing: only whether it arrives counts."""


class MemberGone(Exception):
    """A member takes no part any more; the text says what is known."""


class Note(NamedTuple):
    """The immediate data of a write into a mailbox.

    `number` counts the messages from `rank` to this member. `left`: bytes of the piece that were not sent before,
    those of this message with them.
    """

    rank: int
    number: int
    left: int

    def pack(self) -> int:
        return self.rank << 48 | self.number % _NUMBERS << 32 | self.left

    @classmethod
    def unpack(cls, imm: int) -> Note:
        return cls(imm >> 48 & MAX_MEMBERS - 1, imm >> 32 & _NUMBERS - 1, imm & MAX_PIECE_BYTES)


def gone(rank: int, *, failed: bool) -> int:
    """The immediate data by which member `rank` says that it takes no part any more; `failed`: it did not finish a
    collective, so that nobody else can."""
    return _GONE | rank << 48 | failed


class Mailbox:
    """A region (see `transport.api.Region`) of `2 · size` places of `place_bytes`.

    Message n of a sender lands in its place n mod 2. A member sends message n + 2 only after it has taken the
    receiver's n + 1, and that one is sent only when the receiver is done with n: so nothing is overwritten while
    it is read, and nobody has to say that a place is free.
    """

    def __init__(self, size: int, place_bytes: int) -> None:
        self._place_bytes = place_bytes
        self._memory = memoryview(bytearray(2 * size * place_bytes))
        self._arrived: list[deque[Note]] = [deque() for _ in range(size)]
        self._heard = [0] * size
        self._taken = [0] * size
        self._gone: dict[int, str] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    # ── the region ─────────────────────────────────────────────────────────────────────────────────
    @property
    def nbytes(self) -> int:
        return len(self._memory)

    def resolve(self, offset: int, nbytes: int) -> Sequence[memoryview]:
        return [self._memory[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        note = Note.unpack(imm)
        if imm == PROBE:
            return
        if note.rank >= len(self._arrived):
            log.warning("note_ignored", rank=note.rank, members=len(self._arrived))
        elif imm & _GONE and note.left:
            for rank in range(len(self._arrived)):
                self.lose(rank, f"member {note.rank} broke a collective off; its log says why")
        elif imm & _GONE:
            self.lose(note.rank, "it has left the group")
        elif note.number != self._heard[note.rank] % _NUMBERS:
            self.lose(
                note.rank,
                f"its message {note.number} came where {self._heard[note.rank] % _NUMBERS} is next",
            )
        else:
            self._heard[note.rank] += 1
            self._arrived[note.rank].append(note)
            self._wake(note.rank)

    # ── what the member does ───────────────────────────────────────────────────────────────────────
    def offset(self, sender: int, number: int) -> int:
        """Where message `number` of `sender` lies in any mailbox of the group."""
        return (2 * sender + number % 2) * self._place_bytes

    def lose(self, rank: int, reason: str) -> None:
        """Nothing more comes from `rank`; what has arrived can still be taken. The first reason stands."""
        self._gone.setdefault(rank, reason)
        self._wake(rank)

    def expect(self, rank: int) -> None:
        """Raises MemberGone where nothing can come from `rank` any more."""
        if rank in self._gone and not self._arrived[rank]:
            raise MemberGone(self._gone[rank])

    async def take(self, rank: int) -> tuple[memoryview, int]:
        """The next message from `rank`, where it lies, and how many bytes of its piece are still to come.

        Valid until this member sends to `rank` again. One caller at a time per rank. Raises MemberGone.
        """
        while not self._arrived[rank]:
            self.expect(rank)
            waiting = self._waiting[rank] = asyncio.get_running_loop().create_future()
            try:
                await waiting
            finally:
                self._waiting.pop(rank, None)
        note = self._arrived[rank].popleft()
        start = self.offset(rank, self._taken[rank])
        self._taken[rank] += 1
        nbytes = min(note.left, self._place_bytes)
        return self._memory[start : start + nbytes], note.left - nbytes

    def _wake(self, rank: int) -> None:
        waiting = self._waiting.get(rank)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
