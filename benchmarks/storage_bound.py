"""What the second read path gives where storage NICs are the bottleneck: hit bytes per second, dualpath over pe-
only.

    python -m benchmarks.storage_bound [--shapes 1P1D,2P1D,1P2D,2P4D] [--pairs 3] [--total 30MB/s] [--seconds 8]

Synthetic engines whose compute takes no time, emulated SNICs, closed-loop clients that ask for stored contexts
with a few new tokens. Of each shape both modes run in turn, first the one and then the other, on the same
store; the bound is (P+D)/P. Hit bytes per second are what the SNICs received in a window in which all clients
were busy.

CNICs have eight times the bandwidth of an SNIC, and DRAM ten times, as in the paper's testbed; a shape counts
only inside the bottleneck-free range (paper §3). A run is valid only if the SNICs that the mode reads through
were at least 90 % busy, the machine's CPU less than 80 %, and all that was stored was hit. All is printed. Exit
code 1 where something was not valid.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from benchmarks.local import machine, random_ids
from benchmarks.ratios import in_turn, interval
from benchmarks.snics import (
    NEW_TOKENS,
    Window,
    add_window_options,
    ask,
    contexts,
    end,
    home_with,
    measure,
    settings,
)

from dualpath.loadgen.experiments.systems import shape as nodes_of
from dualpath.policy.bottleneck import bottleneck_free
from dualpath.settings import parse_rate

MODES = ("pe-only", "dualpath")
CLIENTS_PER_NODE = 6
CNIC_TO_SNIC = 8
DRAM_TO_SNIC = 10
WANTED = 0.95


@dataclass(frozen=True)
class Shape:
    name: str
    prefill: int
    decode: int
    snic_bandwidth: int

    @classmethod
    def of(cls, name: str, total_bytes_per_s: int) -> Shape:
        """Raises ValueError for what is no shape."""
        prefill, decode = nodes_of(name)
        return cls(name, prefill, decode, total_bytes_per_s // (prefill + decode))

    @property
    def bound(self) -> float:
        return (self.prefill + self.decode) / self.prefill

    @property
    def clients(self) -> int:
        return CLIENTS_PER_NODE * (self.prefill + self.decode)

    def settings(self, tokens: int) -> dict[str, Any]:
        return settings(self.prefill, self.decode, self.snic_bandwidth, tokens) | {
            "cnic_bandwidth": CNIC_TO_SNIC * self.snic_bandwidth,
            "dram_bandwidth": DRAM_TO_SNIC * self.snic_bandwidth,
        }


def run(shape: Shape, args: argparse.Namespace, home: Path, stored: list[list[int]]) -> bool:
    """All pairs of a shape; whether all was valid."""
    check = bottleneck_free(shape.prefill, shape.decode, 1, 1 / CNIC_TO_SNIC, DRAM_TO_SNIC)
    print(
        f"{shape.name}  SNICs of {shape.snic_bandwidth / 1e6:g} MB/s; paper §3: {check.sentence()}",
        flush=True,
    )
    valid = check.free
    ratios: list[float] = []
    for number in range(args.pairs):
        rates: dict[str, float] = {}
        for mode in in_turn(MODES, number):
            window, misses = once(shape, mode, args, home, stored)
            rates[mode] = window.bytes_per_s
            valid &= report(shape, mode, window, misses)
        ratios.append(rates["dualpath"] / rates["pe-only"])
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    least = min(ratios) / shape.bound
    said = f"{interval(ratios)}, each {each}" if len(ratios) > 1 else each
    print(
        f"{shape.name}  dualpath / pe-only: {said}; bound {shape.bound:.2f}, the least {least:.1%} of it "
        f"(wanted {WANTED:.0%}){'' if valid else ': INVALID'}",
        flush=True,
    )
    return valid


def once(
    shape: Shape, mode: str, args: argparse.Namespace, home: Path, stored: list[list[int]]
) -> tuple[Window, int]:
    """The window of one run, and how many requests missed hits."""
    chosen = shape.settings(args.tokens) | {"mode": mode}
    if mode == "dualpath":
        chosen["read_path"] = args.read_path
    source = random.Random(1)
    misses = 0

    async def agent(http: httpx.AsyncClient, model: str, number: int) -> None:
        nonlocal misses
        context = stored[source.randrange(len(stored))]
        explained = await ask(http, model, [*context, *random_ids(source, NEW_TOKENS)])
        misses += explained["hit_tokens"] < len(context)

    (window,) = measure(
        home, chosen, shape.clients, agent, warm_s=args.warm, windows=1, window_s=args.seconds
    )
    return window, misses


def report(shape: Shape, mode: str, window: Window, misses: int) -> bool:
    """Print a run; whether it was valid."""
    busy = window.busy(shape.snic_bandwidth, "prefill" if mode == "pe-only" else "")
    each = " ".join(
        f"{name} {n / window.seconds / shape.snic_bandwidth:.0%}"
        for name, n in sorted(window.received.items())
    )
    valid = busy >= 0.9 and window.cpu < 0.8 and not misses
    print(
        f"{shape.name}  {mode:9} {window.bytes_per_s / 1e6:7.2f} MB/s  SNICs that read {busy:.1%} busy ({each}), "
        f"CPU {window.cpu:.0%}, {misses} requests missed hits: {'valid' if valid else 'INVALID'}",
        flush=True,
    )
    return valid


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--shapes", default="1P1D,2P1D,1P2D,2P4D", help="as 2P1D, separated by commas"
    )
    parser.add_argument("--pairs", type=int, default=3, help="of runs, of each shape")
    parser.add_argument(
        "--total", type=parse_rate, default=parse_rate("30MB/s"), help="of all SNICs of a cluster"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="of each stored context")
    parser.add_argument("--contexts", type=int, default=24, help="stored contexts")
    add_window_options(parser, warm_s=4.0, seconds=8.0)
    parser.add_argument("--read-path", default="split", help="of mode dualpath")
    args = parser.parse_args(arguments)
    print(machine())
    stored = contexts(args.contexts, args.tokens)
    shapes = [Shape.of(name, args.total) for name in args.shapes.split(",")]
    with home_with(settings(1, 1, None, args.tokens), stored) as home:
        found = [run(shape, args, home, stored) for shape in shapes]
    return end(all(found))


if __name__ == "__main__":
    sys.exit(main())
