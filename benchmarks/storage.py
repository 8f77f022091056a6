"""How fast a shard serves blocks from its disk, against the disk's and the socket's own limits in the same run.

    python -m benchmarks.storage [--total 768MiB] [--sizes 1.4MiB,256KiB] [--clients 1,4,16] [--rounds 3] [--direct]

A shard in a process of its own, clients in another (each a store of its own, with connections of its own), over
loopback. Blocks are stored, then read in random order, several clients sharing the whole, each in calls of 64 MiB (or
in one, where its share is less), one after another: what a request of a short context reads at once (1,400 tokens of
DS 660B, 256 of Qwen2.5-32B). As each call ends before the next begins, a lone client with smaller ones leaves the
disk idle in between.

    cold   after POSIX_FADV_DONTNEED, checked with fincore; against fio's randread of the same files with four
           threads of preads of a block's size (a shard's own), buffered, caches invalidated
    warm   from the page cache; against plain sendfile of the same files to another process, through a socket as this
           machine gives it to who sets no options (its congestion control among them)

Harder than the latter, and printed beside it: `tuned`, over a connection with the options of links, and `same work`,
where the process also does what a client has to: a block at a time into as much memory, with a checksum of each.
What is wanted of warm reads is judged by the last.

All of it verified by the clients' checksums. Rounds of all kinds take turns; ratio is that of the medians. CPU is
what the shard's process and the clients' spend by GB: where cores are few, it bounds the rate, and it says more than
the rate on a busy machine. Then `match` of 2,048 keys, and the memory of the shard's process before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import multiprocessing
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import uvloop
from benchmarks.local import machine
from benchmarks.shards import Running, client, drop_from_cache, shard, slot_files

from dualpath.kvstore.api import ReadStatus, WriteStatus
from dualpath.kvstore.checksum import block_checksum
from dualpath.kvstore.disk import DiskOptions
from dualpath.kvstore.extent import slot_bytes_of
from dualpath.kvstore.shards import ShardStore
from dualpath.settings.units import parse_bytes
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.sockets import tune

CALL_BYTES = 64 << 20
WRITE_BYTES = 128 << 20
MATCH_KEYS = 2048
POPULATED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
"""Memory as a node's arena is: there before anything arrives."""
WANTED = {"cold": 0.8, "warm": 0.7}
FIO_THREADS = 4


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Reader:
    """One client's share of the blocks, and memory to read them into."""

    def __init__(self, store: ShardStore, numbers: list[int]) -> None:
        self._store = store
        self._keys = [key(number) for number in numbers]
        size = store.namespace.block_bytes
        self._per_call = max(1, min(len(numbers), CALL_BYTES // size))
        memory = memoryview(mmap.mmap(-1, self._per_call * size, flags=POPULATED))
        self._into = [memory[i * size : (i + 1) * size] for i in range(self._per_call)]

    async def read(self) -> None:
        for first in range(0, len(self._keys), self._per_call):
            keys = self._keys[first : first + self._per_call]
            statuses = await self._store.read(keys, self._into[: len(keys)], deadline_s=120)
            if statuses != [ReadStatus.FOUND] * len(keys):
                raise RuntimeError(f"blocks were not read: {statuses}")


class Spent(NamedTuple):
    seconds: float
    shard_cpu_s: float = 0.0
    client_cpu_s: float = 0.0


async def read_all(
    running: Running, stores: list[ShardStore], count: int, source: random.Random
) -> Spent:
    """What it took the clients to read all blocks, each its share."""
    numbers = source.sample(range(count), count)
    readers = [Reader(store, numbers[i :: len(stores)]) for i, store in enumerate(stores)]
    begin, shard, own = time.perf_counter(), running.cpu_s(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read())
    return Spent(time.perf_counter() - begin, running.cpu_s() - shard, time.process_time() - own)


async def fill(store: ShardStore, count: int) -> None:
    size = store.namespace.block_bytes
    per_call, content = max(1, CALL_BYTES // size), memoryview(random.Random(1).randbytes(size))
    for first in range(0, count, per_call):
        numbers = range(first, min(count, first + per_call))
        blocks = [content] * len(numbers)
        statuses = await store.write([key(n) for n in numbers], blocks, deadline_s=120)
        if statuses != [WriteStatus.STORED] * len(blocks):
            raise RuntimeError(f"blocks were not stored: {statuses}")


def resident(files: list[Path]) -> float:
    """How much of the files is in the page cache, 0 to 1."""
    command = ["fincore", "--bytes", "--noheadings", "--raw", "--output", "RES", *map(str, files)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return sum(map(int, lines)) / sum(path.stat().st_size for path in files)


def fio_s(files: list[Path], slot_bytes: int) -> float:
    """Seconds per byte in which fio reads every slot of the files once, each thread those of its own files."""
    command = [
        "fio", "--rw=randread", f"--bs={slot_bytes}", "--ioengine=psync", "--thread", "--invalidate=1",
        "--group_reporting", "--readonly", "--output-format=json",
    ]  # fmt: skip
    for thread in range(min(FIO_THREADS, len(files))):
        command += [
            f"--name=read{thread}",
            f"--filename={':'.join(map(str, files[thread::FIO_THREADS]))}",
        ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    return float(read["runtime"]) / 1e3 / float(read["io_bytes"])


def receive(pipe: Connection, block_bytes: int, verified: bool) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    memory = memoryview(mmap.mmap(-1, max(CALL_BYTES, block_bytes), flags=POPULATED))
    pipe.send(listener.getsockname()[1])
    connection, _ = listener.accept()
    count = 1
    while count:
        for start in range(0, len(memory) - block_bytes + 1, block_bytes):
            block = left = memory[start : start + block_bytes]
            while left and (count := connection.recv_into(left)):
                left = left[count:]
            if verified:
                block_checksum(b"", block)
            if not count:
                break
    pipe.send(None)


def sendfile_s(
    files: list[Path], block_bytes: int, *, verified: bool = True, tuned: bool = True
) -> float:
    """Seconds in which sendfile moves the files into another process's memory."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=receive, args=(theirs, block_bytes, verified)
    )
    process.start()
    port = ours.recv()
    with socket.socket() as sock:
        if tuned:
            tune(sock)
        sock.connect(("127.0.0.1", port))
        begin = time.perf_counter()
        for path in files:
            fd, size, offset = os.open(path, os.O_RDONLY), path.stat().st_size, 0
            while offset < size:
                offset += os.sendfile(sock.fileno(), fd, offset, size - offset)
            os.close(fd)
    ours.recv()
    seconds = time.perf_counter() - begin
    process.join()
    return seconds


async def match_s(store: ShardStore, count: int, calls: int) -> list[float]:
    keys = [key(number % count) for number in range(MATCH_KEYS)]
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        found = await store.match(keys, lease_s=10.0)
        times.append(time.perf_counter() - begin)
        if found.blocks != MATCH_KEYS:
            raise RuntimeError(f"{found.blocks} blocks matched")
        await store.release(found)
    return sorted(times)


async def measure(running: Running, root: Path, block_bytes: int, args: argparse.Namespace) -> None:
    count = args.total // block_bytes
    nbytes, slot_bytes, source = count * block_bytes, slot_bytes_of(block_bytes), random.Random(1)
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(client([running], block_bytes, f"client-{number}"))
            for number in range(max(args.clients))
        ]
        await fill(stores[0], count)
        files = slot_files(root)
        times: dict[str, list[Spent]] = {}

        def took(kind: str, spent: Spent) -> None:
            times.setdefault(kind, []).append(spent)

        before, left = running.memory_bytes(), 0.0
        for _ in range(args.rounds):
            for clients in args.clients:
                drop_from_cache(files)
                left = max(left, resident(files))
                took(f"cold {clients}", await read_all(running, stores[:clients], count, source))
            drop_from_cache(files)
            took("cold reference", Spent(fio_s(files, slot_bytes) * nbytes))
            await read_all(running, stores[:1], count, source)
            for clients in args.clients:
                took(f"warm {clients}", await read_all(running, stores[:clients], count, source))
            sizes = sum(path.stat().st_size for path in files)
            share = nbytes / sizes
            plain_s = sendfile_s(files, block_bytes, verified=False, tuned=False)
            took("warm reference", Spent(plain_s * share))
            took("warm tuned", Spent(sendfile_s(files, block_bytes, verified=False) * share))
            took("warm same work", Spent(sendfile_s(files, block_bytes) * share))
        print(
            f"\n{nbytes / 1e6:,.0f} MB in blocks of {block_bytes:,} bytes; left in the cache: {left:.1%}"
        )
        for kind, reference in (("cold", "fio"), ("warm", "sendfile")):
            limit = rate(times[f"{kind} reference"], nbytes)
            besides = {
                name: rate(times[f"{kind} {name}"], nbytes)
                for name in ("tuned", "same work")
                if f"{kind} {name}" in times
            }
            harder = ", ".join(f"{name} {other:.2f}" for name, other in besides.items())
            print(f"  {kind}  {reference} {limit:.2f} GB/s {harder}")
            for clients in args.clients:
                spent = times[f"{kind} {clients}"]
                cpu = [
                    sum(column) / len(spent) / nbytes * 1e9 for column in zip(*spent, strict=True)
                ]
                print(
                    f"    {clients:2} clients {rate(spent, nbytes):6.2f} GB/s  ratio "
                    f"{rate(spent, nbytes) / limit:.2f}  "
                    + "".join(
                        f"of {name} {rate(spent, nbytes) / other:.2f}  "
                        for name, other in besides.items()
                    )
                    + f"(wanted {WANTED[kind]})  CPU s/GB: shard {cpu[1]:.2f}, clients {cpu[2]:.2f}"
                )
        matches = await match_s(stores[0], count, 200)
        print(
            f"  match of {MATCH_KEYS:,} keys: p50 {matches[100] * 1e3:.2f} ms, p99 {matches[197] * 1e3:.2f} ms"
        )
        print(
            f"  memory of the shard: {before / 1e6:.0f} MB before, {running.memory_bytes() / 1e6:.0f} MB after,"
            f" {running.memory_bytes('VmHWM') / 1e6:.0f} MB at most"
        )


def rate(spent: list[Spent], nbytes: int) -> float:
    """The median, in GB/s."""
    return nbytes / statistics.median(one.seconds for one in spent) / 1e9


async def write_s(running: Running, block_bytes: int) -> float:
    """Seconds until WRITE_BYTES are acknowledged as stored."""
    async with client([running], block_bytes) as store:
        begin = time.perf_counter()
        await fill(store, WRITE_BYTES // block_bytes)
        return time.perf_counter() - begin


def writes(block_bytes: int, args: argparse.Namespace) -> None:
    """What durability costs: STORED when readable, against STORED when synced."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(args.rounds):
        for fsync, found in rates.items():
            with (
                tempfile.TemporaryDirectory(dir=args.dir, prefix="dualpath-storage-") as directory,
                shard("storage-0", Path(directory), DiskOptions(fsync=fsync)) as running,
            ):
                found.append(WRITE_BYTES / uvloop.run(write_s(running, block_bytes)) / 1e9)
    readable, durable = (statistics.median(found) for found in rates.values())
    print(
        f"  stored, readable {readable:.2f} GB/s; with store_fsync {durable:.2f} GB/s"
        f" ({durable / readable:.0%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--total", type=parse_bytes, default=768 << 20)
    parser.add_argument("--sizes", default="1.4MiB,256KiB")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--direct", action="store_true", help="the shard reads with O_DIRECT")
    parser.add_argument(
        "--dir", type=Path, help="where to put the blocks; default: a temporary one"
    )
    args = parser.parse_args()
    args.clients = [int(text) for text in args.clients.split(",")]
    for tool in ("fio", "fincore"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is needed: install fio and util-linux")
    configure_logging("benchmark", fmt="console", level="error")
    print(machine())
    for text in args.sizes.split(","):
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="dualpath-storage-") as directory:
            root = Path(directory)
            with shard("storage-0", root, DiskOptions(direct=args.direct)) as running:
                uvloop.run(measure(running, root, parse_bytes(text), args))
        writes(parse_bytes(text), args)


if __name__ == "__main__":
    main()
