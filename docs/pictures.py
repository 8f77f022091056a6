"""Draws the terminals of docs/pictures/: what one of 80 columns shows in real sessions.

`make pictures` draws all, `python docs/pictures.py NAME…` some of them.

A shell runs what the pages say, in a home directory of its own; nothing is made up or edited. Port 8000 must be free.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, LINES = 80, 120
"""So many lines that nothing leaves the screen."""

_PROMPT = "$ "
_WITHIN_S = 600.0
_READ_S = 0.5
_BYTES = 1 << 16
_DIM, _GREY = (2,), (90,)
_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Rich's picture asks other hosts for its font; ours takes one that is there.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
SVG = SVG.replace("Fira Code, monospace", _FONT)


class Screen(pyte.Screen):
    """pyte knows no dim text: it is grey here."""

    def select_graphic_rendition(self, *attributes: int) -> None:
        super().select_graphic_rendition(*(_GREY if attributes == _DIM else attributes))

    @property
    def before_cursor(self) -> str:
        """The cursor's line, up to the cursor."""
        return str(self.display[self.cursor.y][: self.cursor.x])

    def shown(self) -> Iterator[Text]:
        """What is on the screen, without the empty lines at its end."""
        used = max((y for y, line in enumerate(self.display) if line.strip()), default=-1) + 1
        for y in range(used):
            line = Text(no_wrap=True)
            chars = [self.buffer[y][x] for x in range(self.columns)]
            for style, alike in groupby(chars, _style):
                line.append("".join(char.data for char in alike), style)
            line.rstrip()
            yield line


def _style(char: Any) -> Style:
    return Style(
        color=_colour(char.fg),
        bgcolor=_colour(char.bg),
        bold=char.bold,
        italic=char.italics,
        underline=char.underscore,
        reverse=char.reverse,
    )


def _colour(name: str) -> str | None:
    """Rich's name of a colour of pyte's, which is a name or six hexadecimal digits."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return _COLOURS.get(name, name.replace("bright", "bright_"))


class Terminal:
    """A shell at a terminal. Use as a context manager: what still runs in it at the end is hung up on."""

    def __init__(self, environment: dict[str, str], *, lines: int = LINES) -> None:
        self.screen = Screen(COLUMNS, lines)
        self._stream = pyte.Stream(self.screen)
        self._shell = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            cwd=ROOT,
            env=environment,
            dimensions=(lines, COLUMNS),
            encoding="utf-8",
            codec_errors="replace",
        )
        self._row = -1

    def __enter__(self) -> Self:
        self.answers(_PROMPT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.close(force=True)

    def type(self, line: str) -> None:
        self._row = self.screen.cursor.y
        self._shell.send(line + "\r")

    def run(self, command: str) -> None:
        """Type a command, of one line or several, and wait for the shell's next prompt."""
        for line in command.split("\n"):
            self.type(line)
        self.answers(_PROMPT)

    def answers(self, prompt: str) -> None:
        """Wait until `prompt` is asked below the line that was typed last."""
        self._until(
            lambda: self.screen.cursor.y > self._row and self.screen.before_cursor.endswith(prompt),
            repr(prompt),
        )

    def shows(self, text: str) -> None:
        """Wait until `text` is on the screen, below the line that was typed last."""
        self._until(lambda: text in "\n".join(self.screen.display[self._row + 1 :]), repr(text))

    def interrupt(self) -> None:
        """Ctrl-C, and wait for the shell's prompt."""
        self._row = self.screen.cursor.y
        self._shell.sendintr()
        self.answers(_PROMPT)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while not true():
            if time.monotonic() > deadline:
                shown = "\n".join(self.screen.display).rstrip()
                raise TimeoutError(
                    f"{what} was not shown within {_WITHIN_S:g} s; there is:\n{shown}"
                )
            try:
                self._stream.feed(self._shell.read_nonblocking(_BYTES, _READ_S))
            except pexpect.TIMEOUT:
                continue

    def picture(self, name: str) -> str:
        """The screen as an SVG. The same screen gives the same text."""
        console = Console(file=io.StringIO(), record=True, width=COLUMNS)
        for line in self.screen.shown():
            console.print(line)
        return console.export_svg(title=name, code_format=SVG, unique_id=name)


def doctor(environment: dict[str, str]) -> Iterator[tuple[str, Terminal]]:
    with Terminal(environment) as terminal:
        terminal.run("dualpath doctor")
        yield "doctor", terminal


def serve(environment: dict[str, str]) -> Iterator[tuple[str, Terminal]]:
    with Terminal(environment) as server:
        server.type("make run")
        server.shows("dualpath down")
        yield "run", server
        with Terminal(environment) as terminal:
            terminal.run(CURL)
            yield "curl", terminal
        with Terminal(environment) as terminal:
            terminal.type("dualpath chat --temperature 0 --max-tokens 80")
            for question in QUESTIONS:
                terminal.answers("you › ")
                terminal.type(question)
            terminal.answers("you › ")
            terminal.run("/quit")
            yield "chat", terminal
        with Terminal(environment) as terminal:
            terminal.run("dualpath status")
            yield "status", terminal
        server.interrupt()


def demo(environment: dict[str, str]) -> Iterator[tuple[str, Terminal]]:
    with Terminal(environment) as terminal:
        terminal.run("dualpath demo")
        yield "demo", terminal


CURL = (
    "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    '  -d \'{"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], '
    '"max_tokens": 32, "temperature": 0}\''
)
QUESTIONS = (
    "What is a lighthouse for? Answer in two sentences.",
    "And who looked after one, before they were automatic? Two sentences again.",
    "What did such a keeper do at night?",
)
SESSIONS = {"doctor": doctor, "run curl chat status": serve, "demo": demo}


@contextmanager
def strangers_environment() -> Iterator[dict[str, str]]:
    """That of a user who has just installed: nothing of this one's settings, an empty home directory."""
    with TemporaryDirectory(prefix="dualpath-pictures-") as home:
        yield {
            "HOME": home,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "VIRTUAL_ENV": str(Path(sys.executable).parents[1]),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PS1": _PROMPT,
        }


def main(names: list[str]) -> int:
    """Draw the pictures of `names`, or all. Exit code 2: there is no such picture."""
    known = " ".join(SESSIONS).split()
    if unknown := sorted(set(names) - set(known)):
        print(f"no picture {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    PICTURES.mkdir(exist_ok=True)
    with strangers_environment() as environment:
        for drawn, session in SESSIONS.items():
            if names and not set(names) & set(drawn.split()):
                continue
            for name, terminal in session(environment):
                if not names or name in names:
                    path = PICTURES / f"{name}.svg"
                    path.write_text(terminal.picture(name), encoding="utf-8")
                    print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
