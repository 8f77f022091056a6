from __future__ import annotations

from pathlib import Path

from dualpath.settings import Settings
from dualpath.settings.reference import reference

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_of_all_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), (
        "make it anew: python -m dualpath.settings.reference > docs/settings.md"
    )


def test_every_setting_says_what_it_is() -> None:
    assert not [name for name, field in Settings.model_fields.items() if not field.description]
