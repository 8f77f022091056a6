"""The names by which `dualpath why` finds a request."""

from __future__ import annotations

import pytest

from dualpath.cli.why import _bare

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
