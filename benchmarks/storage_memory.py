"""Whether a shard's memory stays flat: reads and writes with eviction for minutes, its memory told by quarter.

    python -m benchmarks.storage_memory [--seconds 150] [--capacity 256MiB] [--rate 60MB/s] [--block 256KiB]

A client stores new blocks, a call of 4 MiB after another, so that the shard has to make room of the oldest all the
time, and reads the latest ones back, verified, `--rate` of each. `own` is what the process itself holds (anonymous
memory and staging), `resident` counts the pages of files that it has mapped as well.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import uvloop
from benchmarks.local import machine
from benchmarks.shards import Running, client, shard
from benchmarks.storage import key

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.disk import DiskOptions
from dualpath.settings.units import parse_bytes, parse_rate
from dualpath.telemetry.logs import configure_logging

CALL_BYTES = 4 << 20


def memory_mb(running: Running) -> tuple[float, float]:
    """Of the process: its own, and all that is resident."""
    own = running.memory_bytes("RssAnon") + running.memory_bytes("RssShmem")
    return own / 1e6, running.memory_bytes() / 1e6


async def load(running: Running, args: argparse.Namespace) -> list[tuple[float, float]]:
    """Memory, once a second."""
    per_call, samples, moved = max(1, CALL_BYTES // args.block), list[tuple[float, float]](), 0
    content = memoryview(bytearray(args.block))
    memory = memoryview(bytearray(per_call * args.block))
    into = [memory[at * args.block : (at + 1) * args.block] for at in range(per_call)]
    begin = time.perf_counter()
    async with client([running], args.block) as store:
        call = 0
        while (passed := time.perf_counter() - begin) < args.seconds:
            if passed >= len(samples):
                samples.append(memory_mb(running))
            names = [key(call * per_call + at) for at in range(per_call)]
            stored = await store.write(names, [content] * per_call, deadline_s=60)
            read = await store.read(names, into, deadline_s=60)
            if (stored, read) != ([WriteStatus.STORED] * per_call, [ReadStatus.FOUND] * per_call):
                raise RuntimeError(f"a call failed: {stored}, {read}")
            call, moved = call + 1, moved + per_call * args.block
            await asyncio.sleep(max(0.0, begin + moved / args.rate - time.perf_counter()))
    print(f"{moved / 1e6:,.0f} MB written and read, of which {args.capacity / 1e6:,.0f} MB fit")
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--capacity", type=parse_bytes, default=256 << 20)
    parser.add_argument("--rate", type=parse_rate, default=60e6)
    parser.add_argument("--block", type=parse_bytes, default=256 << 10)
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="error")
    print(machine())
    with tempfile.TemporaryDirectory(prefix="dualpath-storage-") as directory:
        options = DiskOptions(capacity_bytes=args.capacity)
        with shard("storage-0", Path(directory), options) as running:
            samples = uvloop.run(load(running, args))
    quarter = len(samples) // 4
    for number in range(4):
        own, resident = zip(*samples[number * quarter : (number + 1) * quarter], strict=True)
        print(
            f"  quarter {number + 1}: own {statistics.median(own):.1f} MB ({max(own):.1f} at most), "
            f"resident {statistics.median(resident):.1f} MB ({max(resident):.1f} at most)"
        )


if __name__ == "__main__":
    main()
