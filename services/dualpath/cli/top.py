"""What `dualpath top` does."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from dualpath.cli.top_view import Look, frame
from dualpath.cli.words import NOT_RUNNING, WRONG_USE, complain
from dualpath.cluster.home import Home
from dualpath.cluster.status import read_status
from dualpath.settings import load_settings, shell_path


def top(config: Path | None, home: Path | None, *, interval_s: float, once: bool) -> int:
    """Exit code: 0 shown, until Ctrl-C; 1 the home is somebody else's; 2 wrong settings; 3 no cluster runs,
    or it has stopped."""
    try:
        settings = load_settings(config, home=home)
    except ValueError as error:
        complain(str(error))
        return WRONG_USE
    watched = Home(settings.home)
    console = Console()
    try:
        return _watch(watched, console, interval_s, once=once)
    except PermissionError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 0


def _watch(home: Home, console: Console, interval_s: float, *, once: bool) -> int:
    before = _look(home)
    if before is None:
        complain(f"no cluster runs on {shell_path(home.root)}")
        return NOT_RUNNING
    if once or not console.is_terminal:
        while (now := _next(home, before, interval_s)) is not None:
            console.print(frame(before, now, console.width))
            if once:
                return 0
            before = now
    else:
        # The first picture has no rates yet.
        with Live(
            frame(before, before, console.width), console=console, screen=True, auto_refresh=False
        ) as live:
            while (now := _next(home, before, interval_s)) is not None:
                live.update(frame(before, now, console.width), refresh=True)
                before = now
    complain(f"the cluster on {shell_path(home.root)} has stopped")
    return NOT_RUNNING


def _next(home: Home, before: Look, interval_s: float) -> Look | None:
    """The look that is due `interval_s` after the one before; None where the cluster is gone."""
    time.sleep(max(before.at_s + interval_s - time.monotonic(), 0))
    return _look(home)


def _look(home: Home) -> Look | None:
    status = asyncio.run(read_status(home))
    return None if status is None else Look(time.monotonic(), status)
