"""Whether a network that knows nothing of DualPath sees its virtual lanes (paper §5): bytes by class of a link.

    python -m benchmarks.kernel_lanes [--rate 20] [--seconds 10]        (as root, with ip and tc)

Two network namespaces are joined by a link on which the kernel's htb gives class 1:10 the high lane's share and
class 1:20 the rest, each of which may use all that the other leaves. An endpoint in either, a process of its own;
one writes to the other on both lanes as fast as it can, its NIC not paced: nothing but the kernel divides. Packets
get into their class by the DSCP in their header, as at a switch, or by SO_PRIORITY, which names the class. Prints
what the classes counted (`tc -s class`) once both lanes were saturated; with lanes off; and each lane alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvloop
from benchmarks.local import machine

from dualpath.lanes import Lane, PacedNic
from dualpath.settings import Settings, load_settings
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.sockets import Marks
from dualpath.transport.tcp import TcpEndpoint
from dualpath.wire.types import Address

CLASSES = {Lane.HIGH: "1:10", Lane.LOW: "1:20"}
WRITE_BYTES = 256 * 1024
WRITES_AT_ONCE = 16
WARM_S = 3.0
SENDER, RECEIVER = "10.199.77.1", "10.199.77.2"
_SECRET = b"benchmark"
_DEADLINE_S = 60.0


def why_not() -> str | None:
    """What is missing here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 is missing"
    try:
        with network(100, "dscp"):
            return None
    except RuntimeError as error:
        return str(error)


def settings_for(by: str, *, lanes: bool = True) -> Settings:
    """Marks as htb takes them: the default DSCPs, or as SO_PRIORITY the class itself."""
    if by == "dscp":
        return load_settings(lanes=lanes)
    return load_settings(lanes=lanes, lane_priority=tuple(_handle(CLASSES[lane]) for lane in Lane))


def _handle(name: str) -> int:
    major, minor = (int(part, 16) for part in name.split(":"))
    return major << 16 | minor


# ── the network ────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Network:
    """Namespaces `a` and `b`; the device in `a` is shaped."""

    a: str
    b: str
    device: str

    def counters(self) -> dict[Lane, int]:
        """Bytes that each class has sent so far."""
        tc = ("ip", "netns", "exec", self.a, "tc", "-s")
        shown = run(*tc, "class", "show", "dev", self.device)
        sent = dict(re.findall(r"class htb (\S+) .*\n Sent (\d+) bytes", shown))
        return {lane: int(sent[name]) for lane, name in CLASSES.items()}


@contextmanager
def network(mbit_per_s: int, by: str, high_share: float = 0.99) -> Iterator[Network]:
    """Raises RuntimeError where this kernel has no such thing."""
    net = Network(f"dualpath-{os.getpid()}-a", f"dualpath-{os.getpid()}-b", "lanes0")
    made = []
    try:
        for name in (net.a, net.b):
            run("ip", "netns", "add", name)
            made.append(name)
        inside = ("ip", "-n", net.a)
        run(*inside, "link", "add", net.device, "type", "veth", "peer", net.device, "netns", net.b)
        for name, address in ((net.a, SENDER), (net.b, RECEIVER)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", net.device)
            run("ip", "-n", name, "link", "set", net.device, "up")
        _shape(net, mbit_per_s, by, high_share)
        yield net
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


def _shape(net: Network, mbit_per_s: int, by: str, high_share: float) -> None:
    def tc(*arguments: str) -> None:
        run("ip", "netns", "exec", net.a, "tc", *arguments)

    device = ("dev", net.device)
    full = f"{mbit_per_s * 1000}kbit"
    tc("qdisc", "add", *device, "root", "handle", "1:", "htb", "default", "20")
    tc("class", "add", *device, "parent", "1:", "classid", "1:1", "htb", "rate", full, "ceil", full)
    for lane, share in ((Lane.HIGH, high_share), (Lane.LOW, 1 - high_share)):
        rate = f"{round(mbit_per_s * 1000 * share)}kbit"
        tc("class", "add", *device, "parent", "1:1", "classid", CLASSES[lane], "htb",
           "rate", rate, "ceil", full, "quantum", "3000", "prio", str(int(lane)))  # fmt: skip
    if by == "dscp":
        dscp = load_settings().lane_dscp
        for lane, value in zip((Lane.HIGH, Lane.LOW), dscp, strict=True):
            tc("filter", "add", *device, "parent", "1:", "protocol", "ip", "prio", "1", "u32",
               "match", "ip", "tos", hex(value << 2), "0xfc", "flowid", CLASSES[lane])  # fmt: skip


def run(*command: str) -> str:
    """Raises RuntimeError with what the command said."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr.strip()}")
    return ended.stdout


# ── the endpoints ──────────────────────────────────────────────────────────────────────────────────
class Memory:
    def __init__(self) -> None:
        self._view = memoryview(bytearray(WRITE_BYTES))
        self.nbytes = WRITE_BYTES

    def resolve(self, offset: int, nbytes: int) -> list[memoryview]:
        return [self._view[offset : offset + nbytes]]

    def on_write(self, imm: int) -> None:
        pass


async def endpoint(name: str, host: str, settings: Settings) -> TcpEndpoint:
    async def ignore(peer: Address, message: bytes) -> None:
        pass

    made = TcpEndpoint(
        name,
        host=host,
        nic=PacedNic(name, lanes=settings.lanes),
        secret=_SECRET,
        transfer_deadline_s=_DEADLINE_S,
        marks=Marks.of(settings),
    )
    await made.start(ignore)
    return made


async def receive(settings: Settings) -> None:
    """Until standard input ends. Prints where, and to which key, writes go."""
    receiver = await endpoint("receiver", RECEIVER, settings)
    where = receiver.address
    print(json.dumps([where.incarnation, where.port, receiver.register(Memory())]), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await receiver.close()


async def send(settings: Settings, target: list[Any], lanes: Collection[Lane]) -> None:
    """Write on `lanes` until standard input ends; prints the bytes acknowledged by lane."""
    sender = await endpoint("sender", SENDER, settings)
    incarnation, port, key = target
    peer = Address("receiver", incarnation, RECEIVER, port)
    acknowledged = dict.fromkeys(Lane, 0)
    data = memoryview(bytes(WRITE_BYTES))

    async def write(lane: Lane) -> None:
        while True:
            await sender.write(peer, key, 0, [data], lane=lane)
            acknowledged[lane] += WRITE_BYTES

    writers = [asyncio.create_task(write(lane)) for lane in lanes for _ in range(WRITES_AT_ONCE)]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([ended, *writers], return_when=asyncio.FIRST_COMPLETED)
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    await sender.close()
    print(json.dumps({lane.name: count for lane, count in acknowledged.items()}), flush=True)


# ── the measurement ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Shares:
    """`by_class`: bytes that the classes sent in `seconds`; `by_lane`: what endpoints had acknowledged, in all."""

    by_class: dict[Lane, int]
    by_lane: dict[Lane, int]
    seconds: float

    @property
    def high(self) -> float:
        return self.by_class[Lane.HIGH] / sum(self.by_class.values())

    @property
    def mbit_per_s(self) -> float:
        return sum(self.by_class.values()) * 8e-6 / self.seconds


def measure(
    net: Network,
    by: str,
    seconds: float,
    *,
    lanes_on: bool = True,
    lanes: Collection[Lane] = tuple(Lane),
) -> Shares:
    """Saturate `lanes` for `seconds` after a warm-up. Raises RuntimeError where an endpoint failed."""
    options = ["--by", by, *([] if lanes_on else ["--lanes-off"])]
    with _process(net.b, "receive", *options) as receiver:
        target = _said(receiver)
        names = ",".join(lane.name for lane in lanes)
        with _process(
            net.a, "send", *options, "--target", json.dumps(target), "--lanes", names
        ) as sender:
            time.sleep(WARM_S)
            before, began = net.counters(), time.monotonic()
            time.sleep(seconds)
            after, took = net.counters(), time.monotonic() - began
            assert sender.stdin is not None
            sender.stdin.close()
            acknowledged = _said(sender)
    return Shares(
        {lane: after[lane] - before[lane] for lane in Lane},
        {lane: acknowledged[lane.name] for lane in Lane},
        took,
    )


@contextmanager
def _process(namespace: str, role: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            namespace,
            sys.executable,
            "-m",
            "benchmarks.kernel_lanes",
            role,
            *options,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def _said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("an endpoint ended without a word; its output says why")
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("role", nargs="?", choices=("measure", "receive", "send"), default="measure",
                        help=argparse.SUPPRESS)  # fmt: skip
    parser.add_argument("--rate", type=int, default=20, help="of the link, in Mbit/s")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    for hidden in ("--by", "--target", "--lanes"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--lanes-off", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    configure_logging("benchmark", fmt="console", level="warning")
    if args.role == "receive":
        uvloop.run(receive(settings_for(args.by, lanes=not args.lanes_off)))
    elif args.role == "send":
        lanes = [Lane[name] for name in args.lanes.split(",")]
        settings = settings_for(args.by, lanes=not args.lanes_off)
        uvloop.run(send(settings, json.loads(args.target), lanes))
    else:
        show(args.rate, args.seconds)


def show(mbit_per_s: int, seconds: float) -> None:
    if (reason := why_not()) is not None:
        raise SystemExit(f"kernel_lanes cannot run here: {reason}")
    print(f"{machine()}; a link of {mbit_per_s} Mbit/s, {seconds:g} s each")
    print("marked by  lanes  saturated   class 1:10 (high)  class 1:20 (low)   1:10's share  Mbit/s"
          "  high's share of what was acknowledged")  # fmt: skip
    for by in ("dscp", "priority"):
        for on, lanes in (
            (True, tuple(Lane)), (False, tuple(Lane)), (True, (Lane.HIGH,)), (True, (Lane.LOW,)),
        ):  # fmt: skip
            with network(mbit_per_s, by) as net:
                shares = measure(net, by, seconds, lanes_on=on, lanes=lanes)
            saturated = "both" if len(lanes) == 2 else lanes[0].name.lower()
            of_high = shares.by_lane[Lane.HIGH] / sum(shares.by_lane.values())
            print(f"{by:9}  {'on' if on else 'off':5}  {saturated:9}  {shares.by_class[Lane.HIGH]:18,}"
                  f"  {shares.by_class[Lane.LOW]:16,}  {shares.high:14.2%}  {shares.mbit_per_s:6.1f}"
                  f"  {of_high:.2%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
