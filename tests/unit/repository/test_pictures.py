"""The pictures of the pages: that they are what their script draws, and what it makes of a terminal."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
REPORTED = set(re.findall(r"pictures/([\w-]+)\.svg\)", (ROOT / "docs" / "results.md").read_text()))
"""Of results: `dualpath report` draws them."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_other_picture_is_one_that_the_script_draws(script: ModuleType) -> None:
    drawn = [path.stem for path in PICTURES if path.stem not in REPORTED]
    assert drawn == sorted(" ".join(script.SESSIONS).split())


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_shown_on_a_page_and_asks_nobody_for_anything(picture: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"pictures/{picture.name})" in page.read_text() for page in pages)
    assert not re.findall(r"url\([^#]", picture.read_text())


def test_a_real_terminal_is_drawn_with_its_colours(script: ModuleType) -> None:
    with script.strangers_environment() as environment, script.Terminal(environment) as terminal:
        terminal.run(r"printf 'gone \033[2mdim\033[0m\r\033[1;31mRED\033[0m\n'; echo ~")
        drawn = terminal.picture("test")
        lines = [str(line) for line in terminal.screen.shown()]
    assert lines[1] == "REDe dim"
    assert lines[2] == environment["HOME"]
    (bold_red,) = re.findall(r'class="test-(r\d+)"[^>]*>RED<', drawn)
    assert re.search(rf"\.test-{bold_red} {{ fill: #[0-9a-f]+;font-weight: bold", drawn)
    assert not re.findall(r"url\([^#]", drawn)


def test_a_picture_that_is_not_known_is_refused(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["sunset"]) == 2
    assert "there are doctor" in capsys.readouterr().err
