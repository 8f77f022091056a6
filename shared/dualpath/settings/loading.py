"""Settings from a file, the environment and the command line; mistakes in them as sentences."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dualpath.settings.key_limits import KeyLimits
from dualpath.settings.mistakes import file_mistake, sentence, unknown_variables
from dualpath.settings.settings import ENV_PREFIX, Settings, settings_file
from dualpath.settings.synthetic import SyntheticProfile
from dualpath.settings.vl import VlArbitration

CONFIG_VARIABLE = "DUALPATH_CONFIG"
"""Names the file that is read where the command line names none."""


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Settings from `config` or the file that $DUALPATH_CONFIG names, the environment, and `overrides`
    that are not None.

    Raises ValueError with one sentence per mistake: which setting, where from, what is wrong.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    if config is None and (named := os.environ.get(CONFIG_VARIABLE)):
        config = Path(named)
    if mistakes := unknown_variables(os.environ, ENV_PREFIX, [*Settings.model_fields, "config"]):
        raise ValueError("\n".join(mistakes))
    if config is not None and (mistake := file_mistake(config)):
        raise ValueError(mistake)
    token = settings_file.set(config)
    try:
        return Settings(**given)
    except ValidationError as error:
        lines = [
            sentence(item, Settings, SyntheticProfile, VlArbitration, KeyLimits)
            for item in error.errors()
        ]
        raise ValueError("\n".join(lines)) from error
    finally:
        settings_file.reset(token)


def dump_settings(settings: Settings) -> bytes:
    """All of `settings`, secrets too, as a JSON file that `load_settings` reads back."""
    return settings.model_dump_json(exclude_none=True, indent=2).encode()
