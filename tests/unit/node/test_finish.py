from __future__ import annotations

import pytest

from dualpath.node.finish import finish_reason
from dualpath.wire.types import Sampling

SAMPLING = Sampling(max_tokens=4, seed=0, min_tokens=2, stop_ids=(9,))


@pytest.mark.parametrize(
    ("generated", "token_id", "room", "expected"),
    [
        (1, 5, 10, None),
        (3, 9, 10, "stop"),
        (2, 9, 10, None),
        (4, 5, 10, "length"),
        (4, 9, 10, "stop"),
        (1, 5, 0, "length"),
    ],
)
def test_generation_ends(generated: int, token_id: int, room: int, expected: str | None) -> None:
    assert (
        finish_reason(SAMPLING, generated=generated, token_id=token_id, room_tokens=room)
        == expected
    )
