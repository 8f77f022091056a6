"""Where things lie by default, and how a path is written for people."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def default_home() -> Path:
    """Where a cluster keeps everything unless it is told otherwise."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "dualpath"


def shell_path(path: Path) -> str:
    """`path` as a shell takes it in any directory, with `~` for the user's own."""
    own = Path.home()
    if path != own and path.is_relative_to(own) and own != Path("/"):
        return f"~/{shlex.quote(str(path.relative_to(own)))}"
    return shlex.quote(str(path))


def short_path(path: Path) -> str:
    """`path` as it reads best: from the working directory where it is below that, else as `shell_path`."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else shell_path(path)
