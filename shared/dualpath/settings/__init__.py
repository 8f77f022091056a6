"""All settings of a cluster, from a TOML file, `DUALPATH_…` variables and the command line."""

from dualpath.settings.key_limits import KeyLimits
from dualpath.settings.loading import CONFIG_VARIABLE, dump_settings, load_settings
from dualpath.settings.places import default_home, shell_path, short_path
from dualpath.settings.settings import (
    ENV_PREFIX,
    Mode,
    PlacementChoice,
    ReadPathChoice,
    Settings,
)
from dualpath.settings.synthetic import SyntheticProfile
from dualpath.settings.units import parse_bytes, parse_rate

__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "KeyLimits",
    "Mode",
    "PlacementChoice",
    "ReadPathChoice",
    "Settings",
    "SyntheticProfile",
    "default_home",
    "dump_settings",
    "load_settings",
    "parse_bytes",
    "parse_rate",
    "shell_path",
    "short_path",
]
