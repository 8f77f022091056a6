"""How evenly the storage NICs of a cluster are used: max/mean of their bytes in a window, by read path.

    python -m benchmarks.balance [--shape 1P2D] [--paths round-robin,adaptive,split] [--bandwidth 12MB/s]

Agents replay stored contexts turn by turn, so that what they read grows as in the 64K trace of the paper (scaled
down: its mean context is 32,721 tokens over 157 turns): each asks for a longer prefix of its context each time, and
begins again with another. There are two agents for each SNIC: enough that all could always be busy, few enough that
they are only if the reads are shared out well. Printed are the mean over windows of max/mean of the SNICs' bytes (the
paper: 1.53 round robin, 1.18 scheduled), and the hit bytes per second. The tail, when agents end, is not in the
windows. All run on the same store, one after the other.
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

TURNS = 8


def run(path: str, args: argparse.Namespace, home: Path, stored: list[list[int]]) -> list[Window]:
    prefill, decode = (int(n) for n in args.shape.removesuffix("D").split("P"))
    base = settings(prefill, decode, args.bandwidth, args.tokens)
    agents = 2 * (prefill + decode)
    source = random.Random(3)
    turns = [source.randrange(TURNS) for _ in range(agents)]
    chosen = [source.randrange(len(stored)) for _ in range(agents)]

    async def agent(http: httpx.AsyncClient, model: str, number: int) -> None:
        turns[number] += 1
        if turns[number] > TURNS:
            turns[number], chosen[number] = 1, source.randrange(len(stored))
        prefix = stored[chosen[number]][: args.tokens * turns[number] // TURNS]
        await ask(http, model, [*prefix, *random_ids(source, NEW_TOKENS)])

    return measure(
        home,
        {**base, "mode": "dualpath", "read_path": path},
        agents,
        agent,
        warm_s=args.warm,
        windows=args.windows,
        window_s=args.seconds,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", default="1P2D", help="as 2P1D")
    parser.add_argument(
        "--paths", default="round-robin,adaptive,split", help="read paths to compare"
    )
    parser.add_argument(
        "--bandwidth", type=parse_rate, default=parse_rate("12MB/s"), help="of each SNIC"
    )
    parser.add_argument("--tokens", type=int, default=2048, help="of the longest context")
    parser.add_argument("--contexts", type=int, default=16, help="stored contexts")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds before the first window")
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    args = parser.parse_args(arguments)
    end_in_order()
    print(machine())
    stored = contexts(args.contexts, args.tokens)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        store(home, settings(1, 1, None, args.tokens), stored)
        for path in args.paths.split(","):
            windows = run(path, args, home, stored)
            each = [window.imbalance for window in windows]
            rate = statistics.fmean(window.bytes_per_s for window in windows)
            busy = statistics.fmean(window.busy(args.bandwidth) for window in windows)
            cpu = statistics.fmean(window.cpu for window in windows)
            print(
                f"{args.shape}  {path:11} max/mean {statistics.fmean(each):.2f} (windows {min(each):.2f} to "
                f"{max(each):.2f})  {rate / 1e6:6.2f} MB/s, SNICs {busy:.0%} busy, CPU {cpu:.0%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
