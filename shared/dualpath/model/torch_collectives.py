"""Collectives on torch tensors, for expert- and tensor-parallel models (paper §4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dualpath.transport.api import Buffer
from dualpath.transport.collectives import Group


class TensorGroup:
    """A member's end of a `Group`, for tensors. Those of one collective have one dtype and, but for their first
    dimension, one shape, at all members alike.

    Results are on the device of what was given, and their owner's (the own piece too: a copy). Off an accelerator
    tensors go through host memory. Raises what `Group` raises; ValueError for tensors that do not fit each other.
    """

    def __init__(self, group: Group) -> None:
        self._group = group

    async def all_to_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give `tensors[r]` to member r; what each member gave to this one, by rank. First dimensions are free."""
        like = _alike(tensors)
        parts = await self._group.all_to_all([_bytes_of(tensor) for tensor in tensors])
        return [_tensor_of(part, like) for part in parts]

    async def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every member's tensor, by rank."""
        like = _alike([tensor])
        parts = await self._group.all_gather(_bytes_of(tensor))
        return [_tensor_of(part, like) for part in parts]

    async def reduce_scatter(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of every member's `tensors[rank]`, added in the order of ranks in float32 where they are shorter
        floats. Raises ValueError where the members' shapes differ."""
        parts = await self.all_to_all(tensors)
        if len({part.shape for part in parts}) > 1:
            raise ValueError(
                f"tensors of shapes {[tuple(part.shape) for part in parts]} by rank cannot be added"
            )
        short = parts[0].dtype in (torch.bfloat16, torch.float16)
        total = parts[0].float() if short else parts[0]
        for part in parts[1:]:
            total += part
        return total.to(parts[0].dtype)


def _alike(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    for tensor in tensors:
        if tensor.dim() < 1 or tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"a tensor of {tensor.dtype} and shape {tuple(tensor.shape)} does not go with one of "
                f"{first.dtype} and shape {tuple(first.shape)}: only the first dimension is free"
            )
    return first


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _tensor_of(part: Buffer, like: torch.Tensor) -> torch.Tensor:
    shape = (-1, *like.shape[1:])
    if not memoryview(part).nbytes:
        return like.new_empty((0, *like.shape[1:]))
    return torch.frombuffer(bytearray(part), dtype=like.dtype).reshape(shape).to(like.device)
