"""What a shard's index costs as it grows: time to open, per look-up and match, memory per block.

    python -m benchmarks.storage_growth [--blocks 10000,100000,1000000]

Each size in a process of its own. The tables are written as a shard writes them; the blocks (100 bytes, a page
each) are not, so the files are as sparse as the file system makes them: opening reads tables only. Memory is what
the process has grown by. Wanted is an opening of a million blocks under 5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.local import machine

from dualpath.kvstore.disk import DiskStore, namespace_dir
from dualpath.kvstore.entry import Entry, encode_entry
from dualpath.kvstore.extent import Extent, slot_bytes_of
from dualpath.kvstore.files import DiskFiles
from dualpath.kvstore.index import EXTENT_BYTES, GROWTH, SLOT_BITS
from dualpath.kvstore.syncmark import SyncMark
from dualpath.telemetry.logs import configure_logging
from dualpath.wire.store import Namespace

SPACE = Namespace("growth", 100)
CHAIN = 2048
WANTED_S = 5.0


def make(root: Path, count: int) -> None:
    """A store of `count` blocks, in chains of CHAIN."""
    files, slot_bytes = DiskFiles(), slot_bytes_of(SPACE.block_bytes)
    directory = root / namespace_dir(SPACE)
    directory.mkdir(parents=True)
    done, number = 0, 0
    while done < count:
        slots = min(max(EXTENT_BYTES, done * slot_bytes // GROWTH) // slot_bytes, count - done)
        extent = Extent.create(files, directory, number, slots, slot_bytes)
        first = number << SLOT_BITS
        extent.record(
            [(first + at, encode_entry(first + at, entry(done + at))) for at in range(slots)]
        )
        extent.close()
        done, number = done + slots, number + 1
    mark = SyncMark(files, root)
    mark.write(count + 1)
    mark.close()


def key(number: int) -> bytes:
    return random.Random(number).randbytes(16)


def entry(number: int) -> Entry:
    return Entry(key(number), bytes(16), number + 1, 1e9 + number // CHAIN, number % CHAIN)


def memory_bytes() -> int:
    text = Path("/proc/self/statm").read_text().split()
    return int(text[1]) * 4096


def per_call_s(call: Callable[[int], object], count: int) -> float:
    begin = time.perf_counter()
    for number in range(count):
        call(number)
    return (time.perf_counter() - begin) / count


async def measure(root: Path, count: int, pipe: Connection) -> None:
    before, begin, cpu = memory_bytes(), time.perf_counter(), time.process_time()
    store = DiskStore(root)
    await store.open()
    open_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    grown = memory_bytes() - before
    if store.stat().blocks != count:
        raise RuntimeError(f"{store.stat().blocks} blocks were found, not {count}")
    source = random.Random(2)
    some = [key(source.randrange(count)) for _ in range(20_000)]
    chains = [
        [key(first + at) for at in range(CHAIN)]
        for first in (source.randrange(count - CHAIN) for _ in range(10))
    ]
    lookup_s = per_call_s(lambda n: store.present(SPACE, some[n : n + 1]), len(some))
    match_s = per_call_s(lambda n: store.present(SPACE, chains[n % 10]), 50)
    touch_s = per_call_s(lambda n: store.touch(SPACE, chains[n % 10]), 50)
    await store.close()
    pipe.send((open_s, cpu_s, grown, lookup_s, match_s + touch_s))


def run(root: Path, count: int, pipe: Connection) -> None:
    configure_logging("growth", fmt="console", level="warning")
    asyncio.run(measure(root, count, pipe))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", default="10000,100000,1000000")
    parser.add_argument(
        "--dir", type=Path, help="where to put the stores; default: a temporary one"
    )
    args = parser.parse_args()
    print(machine())
    print(
        f"{'blocks':>10} {'open':>9} {'of it CPU':>10} {'memory/block':>13} {'look-up':>9} {'match of 2,048':>15}"
    )
    for count in map(int, args.blocks.split(",")):
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="dualpath-growth-") as directory:
            root = Path(directory)
            make(root, count)
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=run, args=(root, count, theirs)
            )
            process.start()
            open_s, cpu_s, grown, lookup_s, match_s = ours.recv()
            process.join()
            print(
                f"{count:>10,} {open_s:>7.2f} s {cpu_s:>8.2f} s {grown / count:>11.0f} B {lookup_s * 1e6:>6.2f} µs"
                f" {match_s * 1e3:>12.2f} ms"
            )
    print(f"Wanted: a million blocks opened in less than {WANTED_S:g} s.")


if __name__ == "__main__":
    main()
