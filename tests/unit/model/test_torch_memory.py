"""On a CPU a device buffer and its window are the same bytes."""

from __future__ import annotations

import pytest
import torch

from dualpath.model.torch_memory import TorchBuffer

CPU = torch.device("cpu")


def test_wire_and_tensor_are_the_same_bytes() -> None:
    buffer = TorchBuffer(64, CPU)
    assert (buffer.wire.format, buffer.wire.nbytes, buffer.wire.readonly) == ("B", 64, False)
    buffer.wire[3] = 7
    assert int(buffer.tensor[3]) == 7
    buffer.tensor[4] = 9
    buffer.to_host(4, 5)
    buffer.to_device(0, 64)
    assert buffer.wire[4] == 9


def test_freed_buffer_has_no_bytes_and_its_window_stays_safe() -> None:
    buffer = TorchBuffer(8, CPU)
    window = buffer.wire
    window[:] = b"12345678"
    buffer.free()
    assert len(buffer.wire) == 0
    assert buffer.tensor.numel() == 0
    assert bytes(window) == b"12345678"


def test_empty_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        TorchBuffer(0, CPU)
