"""Starts an experiment by its name, and compares reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from dualpath.cli.bench.arrivals import online
from dualpath.cli.bench.experiment import Output, Plan, carry_out
from dualpath.cli.bench.jct import balance, offline, ratio, rollout
from dualpath.cli.bench.real import RealOptions, real
from dualpath.cli.bench.sweeps import ablation, append, generate
from dualpath.cli.bench.workbench import Options
from dualpath.cli.words import WRONG_USE, complain

_KINDS: dict[str, Callable[[Options], Plan]] = {
    "offline": offline,
    "ratio": ratio,
    "append": append,
    "generate": generate,
    "ablation": ablation,
    "balance": balance,
    "online": online,
}


def start(kind: str, given: Mapping[str, Any]) -> int:
    """`given`: the command's options. Exit code as `carry_out`; WRONG_USE for options that make no experiment."""
    options = dict(given)
    out: Path | None = options.pop("out")
    samples: int = options.pop("samples", 1)
    try:
        if kind == "real":
            plan = real(RealOptions(**options))
        elif kind == "rollout":
            plan = rollout(Options(**options), samples)
        else:
            plan = _KINDS[kind](Options(**options))
        path = out or Path(f"dualpath-{kind}-{time.strftime('%Y%m%d-%H%M')}")
        path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        complain(str(error))
        return WRONG_USE
    return carry_out(plan, Output(path), Console(highlight=False))
