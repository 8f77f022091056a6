"""Command lines that people are told to type: they work in another terminal, in whatever directory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from dualpath.settings import default_home, shell_path

PROGRAM = "dualpath"


def command_on(home: Path, verb: str) -> str:
    """`dualpath VERB` for the cluster on `home`, which is left out where it is the default."""
    line = f"{program()} {verb}"
    return line if home == default_home() else f"{line} --home {shell_path(home)}"


def program() -> str:
    """`dualpath` where PATH leads to the command of this installation, else where that lies."""
    own = Path(sys.executable).with_name(PROGRAM)
    found = shutil.which(PROGRAM)
    if not own.exists() or (found is not None and os.path.samefile(found, own)):
        return PROGRAM
    return shell_path(own)
