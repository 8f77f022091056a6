from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dualpath.settings import shell_path, short_path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own directory."""
    home = tmp_path / "user's own"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return home


@pytest.mark.parametrize("name", ["a", "a b", "$x;'y'"])
def test_a_shell_takes_the_path_as_it_was_meant(own: Path, name: str) -> None:
    for path in (own, own / name, own.parent / name):
        text = shell_path(path)
        said = subprocess.run(
            ["sh", "-c", f"printf %s {text}"], capture_output=True, text=True, check=True
        )
        assert said.stdout == str(path)
    assert shell_path(own / name).startswith("~/")


def test_what_is_below_the_working_directory_is_shown_from_there(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    assert short_path(own / "bin/tool") == "bin/tool"
    (own.parent / "elsewhere").mkdir()
    monkeypatch.chdir(own.parent / "elsewhere")
    assert short_path(own / "bin") == "~/bin"
