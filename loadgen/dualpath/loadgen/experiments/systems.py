"""The systems that experiments compare: this code with its switches on and off. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class System:
    """One column of a comparison: settings over those of the hardware profile. `readers`: whose SNICs read hits."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    readers: str = "both"
    """prefill, both, or none (reads are free)."""
    balances: bool = True
    """False: it reads on either side without a look at which is busy."""


BASIC = System("basic", {"mode": "basic"}, "prefill")
PE_ONLY = System("pe-only", {"mode": "pe-only"}, "prefill")
DUALPATH = System("dualpath", {"mode": "dualpath"})
ORACLE = System("oracle", {"mode": "oracle"}, "none")
MODES = {system.name: system for system in (BASIC, PE_ONLY, DUALPATH, ORACLE)}

_NAIVE = {"placement": "round-robin", "batching": "token-budget"}
ABLATION = (
    BASIC,
    System("+ layerwise", {"mode": "pe-only", **_NAIVE}, "prefill"),
    System(
        "+ dual path", {"mode": "dualpath", "read_path": "round-robin", **_NAIVE}, balances=False
    ),
    System("+ scheduling", {"mode": "dualpath", "read_path": "adaptive"}),
    System("+ split", {"mode": "dualpath", "read_path": "split"}),
)
"""Each has what the one before has. The third reads in turns, so that scheduling is what the next one adds."""

BALANCE = (
    System(
        "round robin",
        {"mode": "dualpath", "placement": "round-robin", "read_path": "round-robin"},
        balances=False,
    ),
    System("adaptive", {"mode": "dualpath", "read_path": "adaptive"}),
    System("split", {"mode": "dualpath", "read_path": "split"}),
)


def modes(names: str) -> list[System]:
    """Systems by their names, with commas between. Raises ValueError for one that is none."""
    try:
        return [MODES[name.strip()] for name in names.split(",")]
    except KeyError as error:
        raise ValueError(
            f"there is no system {error.args[0]!r}; choose from {', '.join(MODES)}"
        ) from None


MAX_NODES = 64
"""Of a role, in a cluster."""


def shape(text: str) -> tuple[int, int]:
    """(P, D) of `2P1D`. Raises ValueError for what is none."""
    prefill, p, rest = text.strip().upper().partition("P")
    decode, d, nothing = rest.partition("D")
    if not (p and d and not nothing and prefill.isdigit() and decode.isdigit()):
        raise ValueError(f"{text!r} is no shape; write 1P1D, 2P1D, and so on")
    if not (int(prefill) and int(decode)):
        raise ValueError(f"{text!r} has no node of a role; both need one at least")
    if max(int(prefill), int(decode)) > MAX_NODES:
        raise ValueError(f"{text!r} has more than {MAX_NODES} nodes of a role")
    return int(prefill), int(decode)


def shape_name(prefill: int, decode: int) -> str:
    return f"{prefill}P{decode}D"
