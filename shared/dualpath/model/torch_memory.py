"""Device memory of the torch back end."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import torch

from dualpath.memory.device import HOST, DeviceBuffer, Place, Staging
from dualpath.tasks import finish


class TorchBuffer(DeviceBuffer):
    """Bytes as a uint8 tensor, 64-byte aligned. On a CPU `wire` is the tensor's own memory, unless `mirrored`.

    On an accelerator `wire` is a pinned mirror, and copies go to the device's default stream: `to_device`
    returns at once (kernels launched later see the bytes), `to_host` when the bytes are there. With `staged`
    `TorchStaging` makes the copies: `to_host` only waits for the kernels that have been launched.
    """

    def __init__(
        self,
        nbytes: int,
        device: torch.device,
        *,
        mirrored: bool | None = None,
        staged: bool = False,
    ) -> None:
        """Raises ValueError for fewer than one byte, and what torch raises where memory lacks."""
        if nbytes < 1:
            raise ValueError(f"a device buffer needs at least one byte, not {nbytes}")
        self.nbytes = nbytes
        self.tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        on_host = device.type == "cpu"
        self._staged = staged
        self._mirror = (
            torch.empty(nbytes, dtype=torch.uint8, pin_memory=not on_host)
            if mirrored or (mirrored is None and not on_host)
            else None
        )
        host = self.tensor if self._mirror is None else self._mirror
        self._wire = memoryview(host.numpy())  # type: ignore[arg-type]

    @property
    def wire(self) -> memoryview:
        return self._wire

    def to_device(self, start: int, stop: int) -> None:
        if self._mirror is not None and not self._staged:
            self.tensor[start:stop].copy_(self._mirror[start:stop], non_blocking=True)

    def to_host(self, start: int, stop: int) -> None:
        if self._mirror is None:
            return
        if not self._staged:
            self._mirror[start:stop].copy_(self.tensor[start:stop], non_blocking=True)
        if self.tensor.is_cuda:
            torch.cuda.current_stream(self.tensor.device).synchronize()

    def free(self) -> None:
        """Drop the memory; it is given back when the last view of it is gone."""
        self.tensor = self.tensor.new_empty(0)
        self._mirror = None
        self._wire = memoryview(b"")


class TorchStaging(Staging):
    """A tensor. On CUDA, copies into buffers are in the order of the default stream, as kernels are; those out of
    buffers have a stream of their own, so that they do not wait for the next layer's kernels."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes = nbytes
        self.tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.address = self.tensor.data_ptr()
        self.place = HOST
        self._outgoing: Any = None
        if device.type == "cuda":
            self.place = Place("VRAM", self.tensor.device.index)
            self._outgoing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # Of what used this memory before, nothing may still run when the NIC writes to it.
            torch.cuda.synchronize(device)

    async def into(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        target, source = tensor_of(buffer)[start : start + nbytes], self.tensor[at : at + nbytes]
        target.copy_(source, non_blocking=True)
        if target.is_cuda:
            await _passed(torch.cuda.current_stream(target.device))

    async def out_of(self, buffer: DeviceBuffer, start: int, at: int, nbytes: int) -> None:
        target, source = self.tensor[at : at + nbytes], tensor_of(buffer)[start : start + nbytes]
        with torch.cuda.stream(self._outgoing) if target.is_cuda else nullcontext():
            target.copy_(source, non_blocking=True)
        if target.is_cuda:
            await _passed(self._outgoing)

    def close(self) -> None:
        self.tensor = self.tensor.new_empty(0)


def tensor_of(buffer: DeviceBuffer) -> torch.Tensor:
    """The bytes of a buffer of this back end; raises TypeError for any other's."""
    if not isinstance(buffer, TorchBuffer):
        raise TypeError(f"the torch back end needs its own buffers, not a {type(buffer).__name__}")
    return buffer.tensor


async def _passed(stream: Any) -> None:
    """Wait, off the event loop, until the stream has come to where it ends now; also when cancelled."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    await finish(asyncio.to_thread(event.synchronize))
