"""Groups over real endpoints, and what their collectives should give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.transport import Make

from dualpath.transport.collectives import Group
from dualpath.transport.tcp import TcpEndpoint

GROUP_DEADLINE_S = 10.0


def pieces_of(seed: int, rank: int, size: int, longest: int) -> list[bytes]:
    """What member `rank` gives to each member: sizes from 0 to `longest`, the same wherever it is drawn."""
    draw = random.Random(f"{seed} {rank}")
    return [
        draw.randbytes(draw.choice((0, 1, longest, draw.randrange(longest)))) for _ in range(size)
    ]


def numbers_of(seed: int, rank: int, size: int, items: int) -> npt.NDArray[np.float32]:
    """`[size, items]`: what member `rank` adds for each member. Whole numbers, whose sums are exact."""
    draw = np.random.default_rng((seed, rank))
    return draw.integers(-1000, 1000, (size, items)).astype(np.float32)


async def check_collectives(group: Group, rounds: int, longest: int, seed: int = 1) -> None:
    """Run every kind, `rounds` times over, and compare with plain computation of what all members gave."""
    rank, size = group.rank, group.size
    for number in range(rounds):
        given = [pieces_of(seed + number, r, size, longest) for r in range(size)]
        got = await group.all_to_all(given[rank])
        assert [bytes(piece) for piece in got] == [given[r][rank] for r in range(size)]
        gathered = await group.all_gather(given[rank][0])
        assert [bytes(piece) for piece in gathered] == [given[r][0] for r in range(size)]
        items = longest // 4
        numbers = [numbers_of(seed + number, r, size, items) for r in range(size)]
        mine = [row.data.cast("B") for row in numbers[rank]]
        total = await group.reduce_scatter(mine, np.float32)
        assert np.array_equal(total, sum(rows[rank] for rows in numbers))


async def form(endpoints: Sequence[TcpEndpoint], **options: Any) -> list[Group]:
    """A joined group of these endpoints."""
    options = {"deadline_s": GROUP_DEADLINE_S, **options}
    groups = [Group(e, rank, len(endpoints), **options) for rank, e in enumerate(endpoints)]
    for group in groups:
        group.join([member.seat for member in groups])
    return groups


@asynccontextmanager
async def groups_of(size: int, make: Make, **options: Any) -> AsyncIterator[list[Group]]:
    groups = await form([await make(f"member-{rank}") for rank in range(size)], **options)
    try:
        yield groups
    finally:
        await asyncio.gather(*(group.close() for group in groups))
