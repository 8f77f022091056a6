"""All settings of a cluster, from a TOML file, `DUALPATH_…` variables and the command line."""

from dualpath.settings.settings import (
    Mode,
    ReadPathChoice,
    Settings,
    SyntheticProfile,
    load_settings,
)
from dualpath.settings.units import parse_bytes, parse_rate

__all__ = [
    "Mode",
    "ReadPathChoice",
    "Settings",
    "SyntheticProfile",
    "load_settings",
    "parse_bytes",
    "parse_rate",
]
