"""Fuzzes the link protocol: the codec by itself, and an endpoint in a process of its own, before and after it knows
its peer, while an honest peer's writes and messages are verified.

    python -m tests.fuzz.frames [--minutes 10] [--seed 1] [--tls]

Ends with exit code 1 where something crashed, hung, or grew. Prints what was sent, what the target made of it, and
which of its ways to end a connection were never taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from tests.fuzz.attacker import Attacker
from tests.fuzz.codec import check
from tests.fuzz.honest import Honest
from tests.fuzz.streams import Streams
from tests.support.certificates import Authority

from dualpath.telemetry.logs import configure_logging
from dualpath.transport.api import TransportError
from dualpath.transport.tls import Tls
from dualpath.wire.types import Address

ATTACKERS = 4
CODEC_SLICE_S = 0.01
CODEC_REST_S = 0.03
_TO_REST = ("descriptors", "tasks", "links", "unproven")
GROWTH_BYTES = 48 << 20
"""Of the target's memory beyond what it was once everything had happened for a while."""

ENDS = (
    "peer_refused version", "peer_refused malformed", "peer_refused secret", "peer_refused identity",
    "peer_refused incarnation",
    "handshake_failed a frame begins", "handshake_failed frames of kind",
    "handshake_failed a WRITE frame came before",
    "handshake_failed a HELLO frame of", "handshake_failed a PROOF frame came in place",
    "handshake_failed the peer closed", "handshake_failed it took too long",
    "peer_misbehaves a frame begins", "peer_misbehaves frames of kind", "peer_misbehaves a HELLO frame came after",
    "peer_misbehaves a WRITE frame of", "peer_misbehaves a write for key", "peer_misbehaves a write to [",
    "peer_misbehaves acknowledgements of status", "peer_misbehaves operation N was acknowledged but never begun",
    "peer_misbehaves ASK: the peer moves KV by RDMA", "peer_misbehaves operation N was acknowledged before",
    "peer_misbehaves more than N messages",
    "link_down the peer closed it", "link_down silent for", "link_down receiving failed",
)  # fmt: skip
"""How the target ends connections, as its log says it."""


@dataclass
class Report:
    """`counts`: what was done; `ends`: what the target's log says, numbers left out; `faults`: what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    held: list[dict[str, int]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def missing(self) -> list[str]:
        """Ways to end a connection that nobody took."""
        return [end for end in ENDS if not any(seen.startswith(end) for seen in self.ends)]

    def note(self, line: str) -> None:
        """One line of the target's log."""
        try:
            entry = json.loads(line)
        except ValueError:
            self.faults.append(f"the target said: {line}")
            return
        event, reason = entry.get("event", ""), str(entry.get("reason", ""))
        if entry.get("level") in ("error", "critical") or "exception" in entry:
            self.faults.append(f"the target logged: {line[:2000]}")
        words = (
            entry["code"] if event == "peer_refused" else re.sub(r"0x[0-9a-f]+|\d+", "N", reason)
        )
        self.ends[f"{event} {words}"[:90].rstrip()] += 1
        if entry.get("peer", "").startswith("honest") and event in ("link_cut", "peer_misbehaves"):
            self.faults.append(f"the honest peer was cut: {line}")


async def fuzz(seconds: float, seed: int, tls_files: Sequence[Path] = ()) -> Report:
    """Attack a target for so long. What goes wrong is in the report's `faults`; seeds repeat what is sent,
    not how it falls together in time."""
    report = Report()
    tls = Tls(*tls_files) if tls_files else None
    began = time.monotonic()
    async with _target(report, tls_files) as (address, honest_key, keys):
        honest = Honest(address, honest_key, tls, random.Random(seed), report.counts)
        await honest.start()
        base = await honest.count()
        until = began + seconds
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(honest.run(until))
                group.create_task(_codec(until, random.Random(seed + 1), report))
                group.create_task(_watch(until, honest, report))
                for number in range(ATTACKERS):
                    streams = Streams(
                        random.Random(seed + 10 + number), [*keys, 3], [b"push", b"count", b"x"]
                    )
                    attacker = Attacker(f"fuzz{number}", address, streams, tls, report.counts)
                    group.create_task(attacker.run(until))
            await _rest(honest, base, report)
        except* (AssertionError, OSError, TimeoutError, TransportError) as errors:
            report.faults += [repr(error) for error in errors.exceptions]
        finally:
            await honest.close()
    report.seconds = time.monotonic() - began
    return report


@asynccontextmanager
async def _target(
    report: Report, tls_files: Sequence[Path]
) -> AsyncIterator[tuple[Address, int, list[int]]]:
    """Its address, the honest peers' key, and those of the others. Its log goes to `report`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fuzz.target", *map(str, tls_files),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    logging = asyncio.ensure_future(_read_log(process.stderr, report))
    try:
        said: list[Any] = json.loads(await process.stdout.readline())
        yield Address(*said[0]), said[1], said[2]
        process.stdin.close()
        async with asyncio.timeout(20):
            if code := await process.wait():
                report.faults.append(f"the target ended with {code}")
    except TimeoutError:
        report.faults.append("the target did not end")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await logging


async def _read_log(stream: asyncio.StreamReader, report: Report) -> None:
    async for line in stream:
        report.note(line.decode(errors="replace").strip())


async def _codec(until: float, draw: random.Random, report: Report) -> None:
    """Without sockets; in slices, so that the others go on."""
    streams = Streams(draw)
    while (now := time.monotonic()) < until:
        while time.monotonic() < now + CODEC_SLICE_S:
            greetings = draw.choice((0, 0, 0, 1, 3))
            data = (streams.greeting() if greetings else b"") + streams.data()
            data = streams.damaged(data)
            ended = check(data, greetings, draw)
            report.counts["codec streams"] += 1
            report.counts["codec bytes"] += len(data)
            report.counts[f"codec ended: {ended}"] += 1
        await asyncio.sleep(CODEC_REST_S)


async def _watch(until: float, honest: Honest, report: Report) -> None:
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        report.held.append(await honest.count())


async def _rest(honest: Honest, base: dict[str, int], report: Report) -> None:
    """Once everybody has gone, the target holds what it held at first."""
    async with asyncio.timeout(20):
        while True:
            now = await honest.count()
            if all(now[name] <= base[name] for name in _TO_REST):
                break
            await asyncio.sleep(0.1)
    report.held.append(now)
    warm = max(entry["rss_bytes"] for entry in report.held[: len(report.held) // 4 + 1])
    grown = max(entry["rss_bytes"] for entry in report.held) - warm
    if grown > GROWTH_BYTES:
        report.faults.append(
            f"the target's memory grew by {grown >> 20} MiB after its first quarter"
        )


def show(report: Report) -> None:
    print(f"{report.seconds:.0f} s")
    for title, counts in (("done", report.counts), ("the target's log", report.ends)):
        print(f"\n{title}")
        for name, count in sorted(counts.items()):
            print(f"  {count:12,}  {name}")
    for name in ("rss_bytes", *_TO_REST) if report.held else ():
        values = [entry[name] for entry in report.held]
        print(f"{name}: first {values[0]:,}, most {max(values):,}, last {values[-1]:,}")
    print(
        f"\nways to end a connection that were taken: {len(ENDS) - len(report.missing)} of {len(ENDS)}"
    )
    for end in report.missing:
        print(f"  never: {end}")
    for fault in report.faults:
        print(f"FAULT: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: another each time")
    parser.add_argument("--tls", action="store_true", help="encrypted links")
    args = parser.parse_args()
    configure_logging("fuzz", fmt="console", level="error")
    seed = random.randrange(1 << 32) if args.seed is None else args.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as directory:
        files: Sequence[Path] = ()
        if args.tls:
            authority = Authority(Path(directory))
            files = (*authority.issue("fuzz"), authority.file)
        report = uvloop.run(fuzz(args.minutes * 60, seed, files))
    show(report)
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
