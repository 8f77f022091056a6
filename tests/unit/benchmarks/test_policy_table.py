from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.policy_table import page

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"


@pytest.mark.parametrize("name", page())
def test_the_page_shows_what_the_rules_do(name: str) -> None:
    table = "\n".join(page()[name])
    assert table in PAGE.read_text(), (
        f"{name} of docs/policies.md: python -m benchmarks.policy_table"
    )
