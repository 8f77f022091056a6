from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from dualpath.cluster.invocation import command_on, program
from dualpath.settings import default_home


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own directory."""
    home = tmp_path / "user's own"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return home


def test_the_default_home_needs_no_option(own: Path) -> None:
    assert command_on(default_home(), "status").endswith("dualpath status")
    assert command_on(own / "other", "down").endswith("dualpath down --home ~/other")


def test_the_command_is_given_in_full_where_path_does_not_lead_to_it(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = own / "bin" / "dualpath"
    beside.parent.mkdir()
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    monkeypatch.setenv("PATH", "/nowhere")
    assert shlex.split(program()) == ["~/bin/dualpath"]
    monkeypatch.setenv("PATH", str(beside.parent))
    assert program() == "dualpath"
