"""The names by which `dualpath why` finds a request, and what it shows of engines."""

from __future__ import annotations

import pytest

from dualpath.cli.why import _bare, _numbers
from dualpath.policy.api import EngineId, EngineView

MADE = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (f"chatcmpl-{MADE}", MADE),
        (f"cmpl-{MADE}", MADE),
        (f"resp_{MADE}", MADE),
        (f"mine/1~{MADE}-2", f"{MADE}-2"),
        (MADE, MADE),
        ("mine/1", "mine/1"),
        # A trace's id, which ends as ours do.
        (f"89abcdef{MADE}", f"89abcdef{MADE}"),
        (f"trace-{MADE}", f"trace-{MADE}"),
    ],
)
def test_ids_of_answers_end_in_the_cluster_s_and_clients_own_stay(given: str, asked: str) -> None:
    assert _bare(given) == asked


@pytest.mark.parametrize(("total", "shown"), [(0, "–"), (5000, "4,000")])
def test_hbm_that_nobody_told_is_not_shown_as_full(total: int, shown: str) -> None:
    view = EngineView(
        EngineId("p", 0), seq=1, tok=20, read_q=3, hbm_free=total * 4 // 5, hbm_total=total
    )
    assert _numbers(view) == ["1", "20", "20", "3", shown, "–", "–"]
