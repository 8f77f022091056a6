"""What the processes of a cluster print: to the console, each line with its process's name, and to files."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TextIO

MAX_LINE_BYTES = 64 * 1024
"""A longer line is broken, so that a process which never ends its line costs no memory."""

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_WAITING_LINES = 10_000


class Lines:
    """Splits a stream of bytes into lines. Pure.

    >>> Lines().feed(b"one\\ntw")
    ['one']
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            whole.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return [line.rstrip(b"\r").decode("utf-8", "replace") for line in whole]

    def end(self) -> list[str]:
        """What came after the last line's end, if anything."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []


class LogFile:
    """`NAME.log`, begun anew at each start and when it reaches `limit_bytes`; the one before is kept as
    `NAME.log.1`. Lines that the disk does not take are counted in `lost`: no reason to stop serving."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._file = self._begin()
        self.lost = 0

    def _begin(self) -> BinaryIO:
        if self.path.exists():
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        return self.path.open("wb", buffering=0)

    def write(self, line: str) -> None:
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            if self._file.tell() and self._file.tell() + len(data) > self._limit:
                fresh = self._begin()
                self._file.close()
                self._file = fresh
            self._file.write(data)
        except (OSError, ValueError):
            self.lost += 1

    def close(self) -> None:
        self._file.close()


class Console:
    """The terminal, written by a thread of its own: one that is stopped, slow or gone never holds up a
    process whose output passes through here. Lines that find no room are dropped, and counted."""

    def __init__(
        self, names: Sequence[str], *, json_lines: bool = False, stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stdout
        self._json = json_lines
        self._services_shown = True
        self._width = max((len(name) for name in names), default=0)
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        self._lines: queue.Queue[str | threading.Event | None] = queue.Queue(_WAITING_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()

    def quiet(self) -> None:
        """From now on show only what the supervisor itself says; each process has its log file. Returns once
        all that was said before is written, or the terminal has not taken it for a second."""
        self._services_shown = False
        written = threading.Event()
        with suppress(queue.Full):
            self._lines.put(written, timeout=1.0)
            written.wait(1.0)

    @property
    def _colour(self) -> bool:
        return not self._json and "NO_COLOR" not in os.environ and self._stream.isatty()

    def say(self, text: str) -> None:
        """Something that the supervisor itself has to say; may be several lines."""
        if self._json:
            text = json.dumps({"service": "supervisor", "event": text}, ensure_ascii=False)
        self._put(text)

    def alarm(self, text: str) -> None:
        """Like `say`, made to be seen."""
        self.say(f"\x1b[1;31m{text}\x1b[0m" if self._colour else text)

    def line(self, name: str, text: str) -> None:
        """A line that the process `name` printed."""
        if not self._services_shown:
            return
        if self._json:
            if not text.startswith("{"):
                text = json.dumps({"service": name, "event": text}, ensure_ascii=False)
            self._put(text)
            return
        prefix = f"{name:<{self._width}} │"
        if self._colour:
            prefix = f"\x1b[{self._colours.get(name, 37)}m{prefix}\x1b[0m"
        self._put(f"{prefix} {text}")

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what waits, as far as the terminal takes it in time."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _put(self, text: str) -> None:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (text := self._lines.get()) is not None:
            if isinstance(text, threading.Event):
                text.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"… {dropped} lines were not shown; they are in the log files\n{text}"
            try:
                self._stream.write(text + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                # The reader is gone (`dualpath up | head`): the cluster goes on, and so does this queue.
                continue
