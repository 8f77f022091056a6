"""Collectives on tensors over real sockets, against torch's own arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
import torch
from tests.support.collectives import groups_of
from tests.support.transport import endpoints

from dualpath.model.torch_collectives import TensorGroup

SIZES = (1, 2, 3)
T = TypeVar("T")


@asynccontextmanager
async def members(size: int) -> AsyncIterator[list[TensorGroup]]:
    async with endpoints() as make, groups_of(size, make) as groups:
        yield [TensorGroup(group) for group in groups]


async def each(
    group: list[TensorGroup], collective: Callable[[TensorGroup, int], Awaitable[T]]
) -> list[T]:
    return await asyncio.gather(*(collective(member, rank) for rank, member in enumerate(group)))


def tensor(source: int, target: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """`[rows, 2, 3]`, of whole numbers: sums are exact in every dtype."""
    draw = torch.Generator().manual_seed(100 * source + target)
    return torch.randint(-8, 8, (rows, 2, 3), generator=draw).to(dtype)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (left.shape, left.dtype) == (right.shape, right.dtype) and torch.equal(
        left.float(), right.float()
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64], ids=str
)
@pytest.mark.parametrize("size", SIZES)
async def test_tensors_of_any_dtype_and_number_of_rows_go_to_their_members(
    size: int, dtype: torch.dtype
) -> None:
    given = [[tensor(s, t, (s + 2 * t) % 4, dtype) for t in range(size)] for s in range(size)]
    async with members(size) as group:
        got = await each(group, lambda member, rank: member.all_to_all(given[rank]))
    for target in range(size):
        for source in range(size):
            assert same(got[target][source], given[source][target])


@pytest.mark.parametrize("size", SIZES)
async def test_gathered_tensors_are_their_owners(size: int) -> None:
    given = [tensor(rank, 0, rank + 1, torch.bfloat16) for rank in range(size)]
    async with members(size) as group:
        got = await each(group, lambda member, rank: member.all_gather(given[rank]))
        # What comes next must not write over it.
        await each(group, lambda member, rank: member.all_gather(torch.zeros(100)))
    for gathered in got:
        assert all(same(part, whole) for part, whole in zip(gathered, given, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("size", SIZES)
async def test_sums_are_those_of_plain_addition(size: int, dtype: torch.dtype) -> None:
    given = [[tensor(s, t, 5, dtype) for t in range(size)] for s in range(size)]
    async with members(size) as group:
        got = await each(group, lambda member, rank: member.reduce_scatter(given[rank]))
    for rank in range(size):
        parts = torch.stack([given[source][rank] for source in range(size)])
        assert same(got[rank], parts.sum(0).to(dtype))


async def test_a_tensor_that_is_a_view_is_sent_as_what_it_shows() -> None:
    whole = torch.arange(24.0, requires_grad=True).reshape(4, 6)
    async with members(2) as group:
        got = await each(group, lambda member, rank: member.all_gather(whole[:, rank::2]))
    assert same(got[0][1], whole[:, 1::2])
    assert not got[0][0].requires_grad


async def test_tensors_that_do_not_fit_each_other_are_refused() -> None:
    async with members(2) as group:
        with pytest.raises(ValueError, match="only the first dimension is free"):
            await group[0].all_to_all([torch.zeros(1, 2), torch.zeros(1, 3)])
        with pytest.raises(ValueError, match="only the first dimension is free"):
            await group[0].all_gather(torch.tensor(1.0))
        with pytest.raises(ValueError, match="cannot be added"):
            await each(
                group, lambda member, rank: member.reduce_scatter([torch.zeros(rank + 1)] * 2)
            )
