from __future__ import annotations

import pytest

from dualpath.node.copies import Copier


@pytest.mark.parametrize("nbytes", [0, 1000, 1 << 20])
async def test_every_target_has_its_sources_bytes_afterwards(nbytes: int) -> None:
    """Whether the copies are made here or in a thread."""
    sources = [bytes([value]) * nbytes for value in (1, 2, 3)]
    targets = [bytearray(nbytes) for _ in sources]
    copier = Copier()
    await copier.run(
        [(memoryview(t), memoryview(s)) for t, s in zip(targets, sources, strict=True)]
    )
    copier.close()
    assert targets == sources
