"""Device memory of the torch back end."""

from __future__ import annotations

import torch

from dualpath.memory.device import DeviceBuffer


class TorchBuffer(DeviceBuffer):
    """Bytes as a uint8 tensor, 64-byte aligned. On a CPU `wire` is the tensor's own memory.

    On an accelerator `wire` is a pinned mirror, and copies go to the device's default stream: `to_device`
    returns at once (kernels launched later see the bytes), `to_host` when the bytes are there.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """Raises ValueError for fewer than one byte, and what torch raises where memory lacks."""
        if nbytes < 1:
            raise ValueError(f"a device buffer needs at least one byte, not {nbytes}")
        self.nbytes = nbytes
        self.tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        on_host = device.type == "cpu"
        self._mirror = None if on_host else torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        host = self.tensor if self._mirror is None else self._mirror
        self._wire = memoryview(host.numpy())  # type: ignore[arg-type]

    @property
    def wire(self) -> memoryview:
        return self._wire

    def to_device(self, start: int, stop: int) -> None:
        if self._mirror is not None:
            self.tensor[start:stop].copy_(self._mirror[start:stop], non_blocking=True)

    def to_host(self, start: int, stop: int) -> None:
        if self._mirror is not None:
            self._mirror[start:stop].copy_(self.tensor[start:stop], non_blocking=True)
            torch.cuda.current_stream(self.tensor.device).synchronize()

    def free(self) -> None:
        """Drop the memory; it is given back when the last view of it is gone."""
        self.tensor = self.tensor.new_empty(0)
        self._mirror = None
        self._wire = memoryview(b"")
