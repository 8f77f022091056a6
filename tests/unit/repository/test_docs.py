from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from dualpath.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert not [page.name for page in PAGES[2:] if f"(docs/{page.name})" not in readme]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_in_pages_exist(page: Path) -> None:
    command = typer.main.get_command(app)
    context = command.make_context("dualpath", ["--help"], resilient_parsing=True)
    commands = getattr(command, "commands")  # noqa: B009
    for line in re.findall(r"\bdualpath ([a-z]+[^\n`|&#)]*)", page.read_text()):
        name, *words = line.split()
        if name not in commands:
            continue
        asked_for = commands[name]
        subcommands = getattr(asked_for, "commands", {})
        if words and words[0] in subcommands:
            asked_for = subcommands[words[0]]
        params = asked_for.get_params(context)
        known = {option for p in params for option in (*p.opts, *p.secondary_opts)}
        asked = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert asked <= known, f"dualpath {line}"
