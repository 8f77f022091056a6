"""Collectives between the engines of a group, as one-sided writes on the high lane (paper §4).

What expert- and tensor-parallel models need: AllToAll of variable sizes, AllGather, ReduceScatter. Each member
writes straight to each other one: of all ways the fewest bytes and hops, for the few engines of a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dualpath.lanes.api import Lane
from dualpath.tasks import together
from dualpath.telemetry.logs import get_logger
from dualpath.transport.api import Buffer, Endpoint, Revoked, TransportError
from dualpath.transport.collectives_mailbox import (
    MAX_MEMBERS,
    MAX_PIECE_BYTES,
    PROBE,
    Mailbox,
    MemberGone,
    Note,
    gone,
)
from dualpath.wire.types import Address

log = get_logger(__name__)

PLACE_BYTES = 256 * 1024
"""A longer piece goes in several messages, one after another."""
_PROBE_S = 1.0
"""So often those that have not sent yet are asked whether they live."""
_FAREWELL_S = 1.0
"""How long `close` waits for the other members to hear that this one has left."""


class CollectiveError(TransportError):
    """A collective came to no end; the text says which member is missing. The group is of no use any more: close
    it, and form another."""


@dataclass(frozen=True)
class Seat:
    """What the other members must know of one: where its endpoint is, and the key of its mailbox."""

    address: Address
    key: int


class Group:
    """One member's end of a group of `size`. All members call the same collectives in the same order.

    Make it, give `seat` to all members by any means, `join` with the seats of all (by rank, the own one too), and
    `close` it at the end. Memory: `2 · size · place_bytes`, freed by `close` once the data plane is done with it.
    Belongs to the event loop of `endpoint`, which stays its owner's.

    A collective in which nothing arrives for `deadline_s`, a link that is lost, a member that leaves or is cancelled
    in the midst of one: whatever ends it for one member ends this or the next one for all, as CollectiveError.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rank: int,
        size: int,
        *,
        deadline_s: float,
        place_bytes: int = PLACE_BYTES,
        lane: Lane = Lane.HIGH,
    ) -> None:
        if not 0 <= rank < size <= MAX_MEMBERS:
            raise ValueError(f"a group of {size} has no member {rank}")
        if place_bytes < 1:
            raise ValueError(f"a place needs at least one byte, not {place_bytes}")
        self.rank = rank
        self.size = size
        self._endpoint = endpoint
        self._deadline_s = deadline_s
        self._place_bytes = place_bytes
        self._lane = lane
        self._mailbox = Mailbox(size, place_bytes)
        self._key = endpoint.register(self._mailbox)
        self._seats: tuple[Seat, ...] = ()
        self._sent = [0] * size
        self._missing: set[int] = set()
        self._scope: asyncio.Timeout | None = None
        self._farewells: list[asyncio.Task[None]] = []
        self._prober: asyncio.Task[None] | None = None
        self.failure: str | None = None
        """Why no more collectives are possible."""

    @property
    def seat(self) -> Seat:
        return Seat(self._endpoint.address, self._key)

    def join(self, seats: Sequence[Seat]) -> None:
        """Once, before the first collective; the other members need not have joined yet."""
        if len(seats) != self.size or seats[self.rank] != self.seat:
            raise ValueError(
                f"member {self.rank} of {self.size} needs every member's seat by rank, its own too"
            )
        self._seats = tuple(seats)
        self._prober = asyncio.create_task(self._probe())

    # ── collectives ────────────────────────────────────────────────────────────────────────────────
    async def all_to_all(self, pieces: Sequence[Buffer]) -> list[Buffer]:
        """Give `pieces[r]` to member r; what each member gave to this one, by rank. Sizes are free, 0 too.

        Pieces are contiguous and at most 4 GiB long. The result's pieces are views that the next collective
        overwrites; the own one is `pieces[rank]` itself. Whether this returns, raises or is cancelled: afterwards
        `pieces` are not read any more.
        """
        self._check(pieces)
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        self._missing = set(others)
        results: list[Buffer] = list(pieces)
        try:
            async with asyncio.timeout(self._deadline_s) as self._scope:
                swaps = [self._swap(rank, pieces[rank]) for rank in others]
                for rank, piece in zip(others, await together(swaps), strict=True):
                    results[rank] = piece
        except TimeoutError:
            missing = ", ".join(self._name(rank) for rank in sorted(self._missing))
            raise self._fail(f"nothing came from {missing} for {self._deadline_s:g} s") from None
        except CollectiveError as error:
            raise self._fail(str(error)) from error.__cause__
        except asyncio.CancelledError:
            self._fail("it was cancelled in the midst of a collective")
            raise
        finally:
            self._scope = None
        return results

    async def all_gather(self, piece: Buffer) -> list[Buffer]:
        """Every member's piece, by rank; see `all_to_all` for sizes and lifetimes."""
        return await self.all_to_all([piece] * self.size)

    async def reduce_scatter(
        self, pieces: Sequence[Buffer], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """The sum of what all members have for this one: of every member's `pieces[rank]`, as items of `dtype`.

        Added in the order of ranks, so that the result does not depend on what arrives first. The array is the
        caller's. Raises CollectiveError where the members' pieces are not of one length.
        """
        parts = await self.all_to_all(pieces)
        lengths = [memoryview(part).nbytes for part in parts]
        if len(set(lengths)) > 1:
            raise self._fail(f"pieces of {lengths} bytes by rank cannot be added; give equal ones")
        total = np.frombuffer(parts[0], dtype).copy()
        for part in parts[1:]:
            total += np.frombuffer(part, dtype)
        return total

    async def close(self) -> None:
        """Leave: members that still count on this one fail at once. When this returns, nothing writes into the
        group's memory any more."""
        self._leave("the group was closed", failed=False)
        try:
            if self._farewells:
                await asyncio.wait(self._farewells, timeout=_FAREWELL_S)
        finally:
            tasks = [*self._farewells, *([self._prober] if self._prober else [])]
            for task in tasks:
                task.cancel()
            await self._endpoint.revoke(self._key)
            await asyncio.gather(*tasks, return_exceptions=True)

    # ── a pair ─────────────────────────────────────────────────────────────────────────────────────
    async def _swap(self, rank: int, piece: Buffer) -> Buffer:
        """Give `piece` to one member and take what it gives. Raises CollectiveError."""
        try:
            self._mailbox.expect(rank)
            taken = await self._swap_messages(rank, memoryview(piece).cast("B"))
        except MemberGone as error:
            raise CollectiveError(f"{self._name(rank)} is missing: {error}") from error
        except Revoked as error:
            raise CollectiveError(f"{self._name(rank)} has left the group") from error
        except TransportError as error:
            raise CollectiveError(f"{self._name(rank)} is missing: {error}") from error
        self._missing.discard(rank)
        return taken

    async def _swap_messages(self, rank: int, source: memoryview) -> Buffer:
        """Message by message; each side sends as many as the longer of the two pieces needs."""
        left = len(source)
        joined = bytearray()
        while True:
            part = source[len(source) - left :][: self._place_bytes]
            await self._send(rank, part, left)
            left -= len(part)
            arrived, to_come = await self._mailbox.take(rank)
            # One that has run out ends the collective in the next turn of the event loop.
            if self._scope is not None and not self._scope.expired():
                self._scope.reschedule(asyncio.get_running_loop().time() + self._deadline_s)
            if left or to_come or joined:
                joined += arrived
            if not left and not to_come:
                return joined or arrived

    async def _send(self, rank: int, part: memoryview, left: int) -> None:
        number = self._sent[rank]
        self._sent[rank] += 1
        seat = self._seats[rank]
        await self._endpoint.write(
            seat.address,
            seat.key,
            self._mailbox.offset(self.rank, number),
            [part],
            lane=self._lane,
            imm=Note(self.rank, number, left).pack(),
        )

    # ── failure ────────────────────────────────────────────────────────────────────────────────────
    def _check(self, pieces: Sequence[Buffer]) -> None:
        if not self._seats:
            raise RuntimeError(f"member {self.rank} has not joined its group yet")
        if self._scope is not None:
            raise RuntimeError("a group does one collective at a time")
        if self.failure is not None:
            raise CollectiveError(f"{self._who()} can do no more collectives: {self.failure}")
        if len(pieces) != self.size:
            raise ValueError(f"{len(pieces)} pieces are not one for each of {self.size} members")
        longest = max(memoryview(piece).nbytes for piece in pieces)
        if longest > MAX_PIECE_BYTES:
            raise ValueError(f"a piece has at most {MAX_PIECE_BYTES} bytes, not {longest}")

    def _fail(self, reason: str) -> CollectiveError:
        """A collective is not finished here: nobody can finish it, or the next one."""
        if self.failure is None:
            log.warning("collective_failed", member=self._who(), reason=reason)
        self._leave(reason, failed=True)
        return CollectiveError(f"{self._who()} could not finish a collective: {reason}")

    def _leave(self, reason: str, *, failed: bool) -> None:
        """Take no part any more, and tell all members so, beside what goes on."""
        if self.failure is not None:
            return
        self.failure = reason
        farewell = gone(self.rank, failed=failed)
        for rank, seat in enumerate(self._seats):
            if rank != self.rank:
                self._farewells.append(asyncio.create_task(self._bid_farewell(seat, farewell)))

    async def _probe(self) -> None:
        """Notice members that die after they have taken what was sent to them: nothing else would tell."""
        while True:
            await asyncio.sleep(_PROBE_S)
            waited_for = sorted(self._missing) if self._scope is not None else []
            for rank in waited_for:
                seat = self._seats[rank]
                try:
                    await self._endpoint.write(
                        seat.address, seat.key, 0, [], lane=self._lane, imm=PROBE
                    )
                except TransportError as error:
                    self._mailbox.lose(rank, str(error))

    async def _bid_farewell(self, seat: Seat, farewell: int) -> None:
        try:
            await self._endpoint.write(seat.address, seat.key, 0, [], lane=self._lane, imm=farewell)
        except TransportError as error:
            # It has left as well, or is what this one failed by.
            log.debug("farewell_unheard", member=seat.address.endpoint_id, reason=str(error))

    def _who(self) -> str:
        return f"member {self.rank} of {self.size} ({self._endpoint.address.endpoint_id})"

    def _name(self, rank: int) -> str:
        return f"member {rank} ({self._seats[rank].address.endpoint_id})"
