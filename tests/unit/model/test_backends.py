"""Choosing an engine, and what its libraries are told before they are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_LOAD = """
import sys
from pathlib import Path
from dualpath.model.backends import load_backend
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import load_spec
from dualpath.settings import Settings
settings = Settings(model=sys.argv[1], home=Path(sys.argv[2]), device="cpu")
prepare_model(settings, print)
load_backend(load_spec(settings), settings).close()
"""


def load(model: str, home: Path) -> str:
    """What OpenMP prints in a process that loads `model`."""
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("DUALPATH_", "OMP_"))
    }
    return subprocess.run(
        [sys.executable, "-c", _LOAD, model, str(home)],
        env={**clean, "OMP_DISPLAY_ENV": "true"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr


def test_threads_of_torch_sleep_while_they_wait(tmp_path: Path) -> None:
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in load("tiny", tmp_path)


def test_the_synthetic_engine_loads_no_openmp(tmp_path: Path) -> None:
    assert "OPENMP DISPLAY ENVIRONMENT" not in load("synthetic", tmp_path)
