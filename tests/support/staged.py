"""A device whose memory is not its window, on a CPU: what a NIC copies can be told from what was there before."""

from __future__ import annotations

import torch

from dualpath.model.torch_backend import TorchBackend
from dualpath.model.torch_memory import TorchBuffer, TorchStaging

CPU = torch.device("cpu")


def buffer(nbytes: int) -> TorchBuffer:
    return TorchBuffer(nbytes, CPU, mirrored=True, staged=True)


class MirroredBackend(TorchBackend):
    """Its buffers have windows apart; whoever copies must, in time, or the tokens are wrong."""

    def allocate(self, nbytes: int) -> TorchBuffer:
        made = TorchBuffer(nbytes, CPU, mirrored=True, staged=self._staged)
        # Freshly mapped pages would be zeros, and so would many rows.
        made.tensor.fill_(0xFF)
        made.wire[:] = b"\xff" * nbytes
        return made

    def stage(self, nbytes: int) -> TorchStaging:
        self._staged = True
        return TorchStaging(nbytes, CPU)
