"""What the second read path gives where storage NICs are the bottleneck: hit bytes per second, dualpath over pe-only.

    python -m benchmarks.storage_bound [--shapes 1P1D,2P1D,1P2D] [--runs 3] [--bandwidth 12MB/s] [--seconds 8]

Synthetic engines whose compute takes no time, emulated SNICs, closed-loop clients that ask for stored contexts with
a few new tokens. Of each shape both modes run in turn, on the same store; the bound is (P+D)/P. Hit bytes per second
are what the SNICs received in a window in which all clients were busy. A run is valid only if the SNICs that the mode
reads through were at least 90 % busy, the machine's CPU less than 80 %, and all that was stored was hit: all is
printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

import httpx
from benchmarks.local import machine, random_ids
from benchmarks.snics import (
    NEW_TOKENS,
    Window,
    ask,
    contexts,
    end_in_order,
    measure,
    settings,
    store,
)

from dualpath.settings import parse_rate

MODES = ("pe-only", "dualpath")
CLIENTS_PER_NODE = 6


def run(shape: str, args: argparse.Namespace, home: Path, stored: list[list[int]]) -> float:
    """Median over the pairs of runs of dualpath over pe-only, over the bound."""
    prefill, decode = (int(n) for n in shape.removesuffix("D").split("P"))
    base = settings(prefill, decode, args.bandwidth, args.tokens)
    bound = (prefill + decode) / prefill
    clients = CLIENTS_PER_NODE * (prefill + decode)
    source = random.Random(1)
    misses = [0]

    async def agent(http: httpx.AsyncClient, model: str, number: int) -> None:
        context = stored[source.randrange(len(stored))]
        explained = await ask(http, model, [*context, *random_ids(source, NEW_TOKENS)])
        misses[0] += explained["hit_tokens"] < len(context)

    ratios: list[float] = []
    for _ in range(args.runs):
        rates: dict[str, float] = {}
        for mode in MODES:
            chosen = {**base, "mode": mode}
            if mode == "dualpath":
                chosen["read_path"] = args.read_path
            (window,) = measure(
                home, chosen, clients, agent, warm_s=args.warm, windows=1, window_s=args.seconds
            )
            rates[mode] = window.bytes_per_s
            print(_line(shape, mode, window, args.bandwidth, misses[0]), flush=True)
            misses[0] = 0
        ratios.append(rates["dualpath"] / rates["pe-only"])
    ratio = statistics.median(ratios)
    print(f"{shape}  dualpath / pe-only: {ratio:.3f} (median of {len(ratios)}: {', '.join(f'{r:.3f}' for r in ratios)}), bound {bound:.2f}, {ratio / bound:.1%} of it")  # fmt: skip  # noqa: E501
    return ratio / bound


def _line(shape: str, mode: str, window: Window, bandwidth: int, misses: int) -> str:
    busy = window.busy(bandwidth, "prefill" if mode == "pe-only" else "")
    each = " ".join(
        f"{name} {n / window.seconds / bandwidth:.0%}"
        for name, n in sorted(window.received.items())
    )
    valid = "valid" if busy >= 0.9 and window.cpu < 0.8 and not misses else "INVALID"
    return (
        f"{shape}  {mode:9} {window.bytes_per_s / 1e6:7.2f} MB/s  SNICs that read {busy:.1%} busy ({each}), "
        f"CPU {window.cpu:.0%}, {misses} requests missed hits: {valid}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="1P1D,2P1D,1P2D", help="as 2P1D, separated by commas")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs of each shape")
    parser.add_argument(
        "--bandwidth", type=parse_rate, default=parse_rate("12MB/s"), help="of each SNIC"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="of each stored context")
    parser.add_argument("--contexts", type=int, default=24, help="stored contexts")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds before the window")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the window")
    parser.add_argument("--read-path", default="split", help="of mode dualpath")
    args = parser.parse_args(arguments)
    end_in_order()
    print(machine())
    stored = contexts(args.contexts, args.tokens)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        store(home, settings(1, 1, None, args.tokens), stored)
        for shape in args.shapes.split(","):
            run(shape, args, home, stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
