"""How commands say that something is wrong, and the exit codes that they share."""

from __future__ import annotations

import sys

WRONG_USE = 2
NOT_RUNNING = 3
INTERRUPTED = 130


def complain(text: str) -> None:
    for line in text.splitlines():
        print(f"dualpath: {line}", file=sys.stderr)
