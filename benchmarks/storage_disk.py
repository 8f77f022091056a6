"""How fast a shard's disk engine reads cold blocks into memory, without network and clients, against fio.

    python -m benchmarks.storage_disk [--total 768MiB] [--sizes 1.4MiB,256KiB] [--rounds 3]

Blocks in random order, as many at a time as one read of a client has in flight, through the page cache and past it
(O_DIRECT, the setting `store_direct`), and fio's randread of the same files with four threads, in turns; before
each the files are dropped from the page cache. Ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import random
import tempfile
import time
from pathlib import Path

import uvloop
from benchmarks.local import machine
from benchmarks.shards import FINGERPRINT, drop_from_cache, slot_files
from benchmarks.storage import POPULATED, Spent, fio_s, key, rate

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions, DiskStore
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.putting import NewBlock
from dualpath.settings.units import parse_bytes
from dualpath.storage.reads import FETCH_BYTES, RUNS_IN_FLIGHT
from dualpath.telemetry.logs import configure_logging
from dualpath.wire.store import Namespace


async def fill(root: Path, block_bytes: int, count: int) -> None:
    disk, content = DiskStore(root), memoryview(random.Random(1).randbytes(block_bytes))
    await disk.open()
    for number in range(count):
        name = key(number)
        block = NewBlock(name, block_checksum(name, content), number, content)
        if await disk.write(Namespace(FINGERPRINT, block_bytes), [block]) != [WriteStatus.STORED]:
            raise RuntimeError("a block was not stored")
    await disk.close()


async def engine_s(root: Path, block_bytes: int, count: int, *, direct: bool) -> Spent:
    """What it took to read all blocks from the disk into memory, in random order."""
    space = Namespace(FINGERPRINT, block_bytes)
    disk = DiskStore(root, DiskOptions(direct=direct))
    await disk.open()
    try:
        size, each = disk.read_bytes(space), max(1, FETCH_BYTES // block_bytes)
        numbers = random.Random(2).sample(range(count), count)
        runs = iter([numbers[first : first + each] for first in range(0, count, each)])

        async def read(memory: memoryview) -> None:
            for run in runs:
                into = [memory[at * size : (at + 1) * size] for at in range(len(run))]
                found = await disk.read_many(space, [key(number) for number in run], into)
                if any(status is not ReadStatus.FOUND for status, _ in found):
                    raise RuntimeError(f"blocks were not read: {found}")

        memories = [
            memoryview(mmap.mmap(-1, each * size, flags=POPULATED)) for _ in range(RUNS_IN_FLIGHT)
        ]
        begin, own = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(read, memories))
        return Spent(time.perf_counter() - begin, time.process_time() - own)
    finally:
        await disk.close()


def measure(root: Path, block_bytes: int, args: argparse.Namespace) -> None:
    count = args.total // block_bytes
    nbytes = count * block_bytes
    uvloop.run(fill(root, block_bytes, count))
    files = slot_files(root)
    ways: dict[bool, list[Spent]] = {False: [], True: []}
    limits: list[Spent] = []
    for _ in range(args.rounds):
        for direct, found in ways.items():
            drop_from_cache(files)
            found.append(uvloop.run(engine_s(root, block_bytes, count, direct=direct)))
        drop_from_cache(files)
        limits.append(Spent(fio_s(files, slot_bytes_of(block_bytes)) * nbytes))
    limit = rate(limits, nbytes)
    print(f"{nbytes / 1e6:,.0f} MB in blocks of {block_bytes:,} bytes: fio {limit:.2f} GB/s")
    for direct, found in ways.items():
        cpu = sum(one.shard_cpu_s for one in found) / len(found) / nbytes * 1e9
        way = "O_DIRECT" if direct else "through the page cache"
        print(
            f"    {way:22} {rate(found, nbytes):6.2f} GB/s  ratio {rate(found, nbytes) / limit:.2f}"
            f"  CPU s/GB {cpu:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--total", type=parse_bytes, default=768 << 20)
    parser.add_argument("--sizes", default="1.4MiB,256KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--dir", type=Path, help="where to put the blocks; default: a temporary one"
    )
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="error")
    print(machine())
    for text in args.sizes.split(","):
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="dualpath-storage-") as directory:
            measure(Path(directory), parse_bytes(text), args)


if __name__ == "__main__":
    main()
