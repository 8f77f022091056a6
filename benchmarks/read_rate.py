"""How fast stored KV comes from a shard to the prefill engine's device, against a raw socket copy of the same bytes.

    python -m benchmarks.read_rate [--paths prefill,decode,split] [--cached 4096] [--concurrent 1,4] [--runs 5]

For each read path a cluster of two shards, one prefill and one decode node with unlimited NICs and a synthetic
model. Contexts are stored; then prompts of a stored context and a new end are asked for, one alone or several with
different contexts at once. From the prefill node's log:

    loaded   until all blocks are in host buffers: from the moment the first request of the group begins to load to
             the moment the last one has all of its hits (PE path: in the PE buffer; DE path: in the DE buffer)
    device   until the last layer has arrived on the PE's device, from the same begin on

So `device` has in it: leases, the shards' reads of files (in the page cache: they were just written), the way
over sockets, checksums, the copy to the device or, of the DE's share, the second way over a socket. Not in it: HTTP,
tokenizing, matching, scheduling. What goes on when a layer has been computed (it is digested and, of the PE's
share, sent on to the DE) is another way: of a request alone, layers take `--layer-ms` to compute, so that they have
arrived before much of that begins. Of several at once, where one's compute would be counted as another's
reading, compute takes no time, and all that competes for the cores.

The reference, in turns with it, is a raw copy over one blocking socket between two processes (1 MiB messages, as
transport.py does), each on a core of its own, of as many bytes of one's memory into as much memory of the other. The
socket is as this machine gives it to who sets no options. `tuned` is the same with the congestion control that
DualPath gives its own, whatever the machine's default is: where that is bbr, a copy through it is twice as slow. What
is wanted is judged by the tuned one.
ratio = device / socket, and `of tuned` likewise: medians over reads, each with the two copies right after it.

With `--pinned` the event loop of the node that reads (of a split, the prefill node) has a core of its own, as each
process of the reference has, and those of all other processes share the rest: a kernel that packs processes that wake
each other onto one core makes them wait for each other otherwise.

All is measured as between hosts, through sockets (`sockets`), and as the setting same_host lets processes of one
host do it: each copies out of the memory of the one before it (`shared-memory`). The reference is a socket copy for
both.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any

from benchmarks.local import PATHS, Cluster, Streamed, cluster, machine, random_ids, until
from benchmarks.transport import Plain, placed

BLOCK_TOKENS = 64
NEW_TOKENS = 64
MESSAGE_BYTES = 1 << 20
WANTED_RATIO = 0.5
ROLES = ("storage", "prefill", "decode", "gateway", "scheduler")


@dataclass(frozen=True)
class Shape:
    layers: int
    row_bytes: int
    cached: int
    ring_layers: int
    layer_ms: float = 0.0

    @property
    def cached_bytes(self) -> int:
        return self.cached * self.layers * self.row_bytes

    def settings(self, path: str, concurrent: int, same_host: str = "sockets") -> dict[str, Any]:
        block = BLOCK_TOKENS * self.layers * self.row_bytes
        room = (concurrent + 1) * (self.cached_bytes + 2 * block)
        return {
            "model": "synthetic",
            # By queues, a split gives all to one side while the other's last report is of the read before.
            "read_path": "halves" if path == "split" else path,
            "same_host": same_host,
            "ring_layers": self.ring_layers,
            "max_context": self.cached + NEW_TOKENS + BLOCK_TOKENS,
            "chunk_tokens": self.cached + NEW_TOKENS,
            "prefill_buffer": room,
            "decode_buffer": room + 16 * block,
            "write_back_blocks": 16,
            "prefill_hbm": room,
            "decode_hbm": room,
            "synthetic": {
                "layers": self.layers,
                "row_bytes": self.row_bytes,
                "forward_s": self.layers * self.layer_ms / 1e3 if concurrent == 1 else 0.0,
                "token_s": 0.0,
                "attention_s": 0.0,
                "decode_step_s": 0.0,
            },
            "trace_forwards": True,
            "log_format": "json",
            "log_level": "debug",
        }


@dataclass(frozen=True)
class Read:
    """A group of requests, in seconds since the first of them began to load."""

    nbytes: int
    loaded_s: float
    device_s: float
    ttft_s: float
    """From sending the group to its last first token, as the clients saw it."""
    cpu_s: Mapping[str, float]
    """What each process spent on the group, from sending to its last line in the log."""


class Contexts:
    """Stored contexts, and prompts that go on from them."""

    def __init__(self, running: Cluster, shape: Shape, path: str, count: int) -> None:
        self._running, self._shape, self._path = running, shape, path
        self._source = random.Random(1)
        self._contexts = [random_ids(self._source, shape.cached) for _ in range(count)]
        for context in self._contexts:
            until(partial(self._stored, context), "a context is stored")
        self.read(count)

    def _stored(self, context: Sequence[int]) -> bool:
        """Ask for the context, which stores what was not; whether it all was."""
        answer = self._running.ask(self._prompt(context))
        return bool(answer.explain["hit_tokens"] == self._shape.cached)

    def _prompt(self, context: Sequence[int]) -> list[int]:
        return [*context, *random_ids(self._source, NEW_TOKENS)]

    def nbytes(self, count: int) -> int:
        """What `read` reads."""
        return count * self._shape.cached_bytes

    def read(self, count: int) -> Read:
        """Ask for `count` of them at once. Raises RuntimeError where one was not read as wanted."""
        prompts = [self._prompt(context) for context in self._contexts[:count]]
        before = self._running.cpu_s()
        with ThreadPoolExecutor(count) as clients:
            answers = list(clients.map(self._running.ask, prompts))
        for answer in answers:
            answer.expect(self._path, self._shape.cached)
        ttft_s = max(answer.sent + answer.ttft_s for answer in answers) - min(
            answer.sent for answer in answers
        )
        loaded_s, device_s = self._from_log(answers)
        cpu_s = {name: at - before[name] for name, at in self._running.cpu_s().items()}
        return Read(self.nbytes(count), loaded_s, device_s, ttft_s, cpu_s)

    def _from_log(self, answers: Sequence[Streamed]) -> tuple[float, float]:
        wanted = {answer.explain["request_id"]: answer for answer in answers}

        def lines(event: str) -> dict[str, dict[str, Any]]:
            found = {
                line["request_id"]: line
                for line in self._running.traces()
                if line.get("event") == event and line["request_id"] in wanted
            }
            return found if len(found) == len(wanted) else {}

        loaded = until(lambda: lines("loaded"), "the loading is in the log")
        forwards = until(lambda: lines("forward"), "the forward is in the log")
        spent = {name: answer.explain["timings_s"]["loading"] for name, answer in wanted.items()}
        return timed(
            [(line, spent[name]) for name, line in loaded.items()], list(forwards.values())
        )


def timed(
    loaded: Sequence[tuple[dict[str, Any], float]], forwards: Sequence[dict[str, Any]]
) -> tuple[float, float]:
    """Seconds from when the first request began to load until the last was loaded, and until its last layer was
    on the device: of `loaded` lines with the seconds that their requests spent loading, and `forward` lines."""
    begin = min(_at(line) - spent_s for line, spent_s in loaded)
    return max(_at(line) for line, _ in loaded) - begin, max(map(_arrived, forwards)) - begin


def _at(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(str(line["ts"])).timestamp()


def _arrived(forward: dict[str, Any]) -> float:
    """When the last layer had arrived; the forward's marks count from its begin, `seconds` before the line."""
    last: float = max(at for event, _, at in forward["marks"] if event == "arrived")
    seconds: float = forward["seconds"]
    return _at(forward) - seconds + last


@dataclass(frozen=True)
class Result:
    same_host: str
    path: str
    concurrent: int
    reads: list[Read]
    plain: list[float]
    tuned: list[float]

    @property
    def loaded(self) -> float:
        return statistics.median(read.nbytes / read.loaded_s for read in self.reads)

    @property
    def device(self) -> float:
        return statistics.median(read.nbytes / read.device_s for read in self.reads)

    @property
    def whole(self) -> float:
        return statistics.median(read.nbytes / read.ttft_s for read in self.reads)

    def ratio(self, copies: Sequence[float]) -> float:
        """Of each read and the copy after it: what else goes on on the machine touches both alike."""
        return statistics.median(
            read.nbytes / read.device_s / rate
            for read, rate in zip(self.reads, copies, strict=True)
        )

    def cpu(self, role: str) -> float:
        """CPU seconds per GB of the processes of a role."""
        return statistics.median(
            sum(spent for name, spent in read.cpu_s.items() if name.startswith(role))
            / (read.nbytes / 1e9)
            for read in self.reads
        )


def pin(running: Cluster, path: str) -> None:
    """Give the event loop of the node that reads a core of its own. Raises OSError where there is only one."""
    first, *others = sorted(os.sched_getaffinity(0))
    reader = "decode" if path == "decode" else "prefill"
    for service in running.record.services:
        if service.exit_status is None:
            cores = {first} if service.name.startswith(reader) else others
            os.sched_setaffinity(service.process.pid, cores)


def measure(contexts: Contexts, same_host: str, path: str, count: int, runs: int) -> Result:
    nbytes = contexts.nbytes(count)
    messages = max(nbytes // MESSAGE_BYTES, 1)
    result = Result(same_host, path, count, [], [], [])
    spread = (messages, messages)
    plain = Plain(MESSAGE_BYTES, buffer_bytes=0, spread=spread, tuned=False)
    tuned = Plain(MESSAGE_BYTES, buffer_bytes=0, spread=spread)
    ways = ((plain, result.plain), (tuned, result.tuned))
    try:
        for _ in range(runs):
            read = contexts.read(count)
            result.reads.append(read)
            for way, rates in ways:
                with placed(way.receiver, "apart"):
                    seconds, _ = way.round(messages)
                rates.append(messages * MESSAGE_BYTES / seconds)
            print(
                f"{same_host:13} {path:8} {count} at once   "
                f"loaded {read.nbytes / read.loaded_s / 1e9:5.2f} GB/s   "
                f"device {read.nbytes / read.device_s / 1e9:5.2f} GB/s   "
                f"socket {result.plain[-1] / 1e9:5.2f} GB/s   tuned {result.tuned[-1] / 1e9:5.2f} GB/s",
                flush=True,
            )
    finally:
        plain.close()
        tuned.close()
    return result


def report(results: Sequence[Result]) -> None:
    print(
        "\nmedians, GB/s                    loaded  device  to first token  socket  ratio   tuned  of tuned"
    )
    for result in results:
        ratio = result.ratio(result.plain)
        of_tuned = result.ratio(result.tuned)
        verdict = "good" if of_tuned >= WANTED_RATIO else f"wanted: {WANTED_RATIO:g}"
        print(
            f"{result.same_host:13} {result.path:8} {result.concurrent:2} at once {result.loaded / 1e9:6.2f} "
            f"{result.device / 1e9:7.2f} {result.whole / 1e9:15.2f} "
            f"{statistics.median(result.plain) / 1e9:7.2f} {ratio:6.2f} "
            f"{statistics.median(result.tuned) / 1e9:7.2f} {of_tuned:9.2f}   {verdict}"
        )
    print("\nCPU seconds per GB                 " + "".join(f"{role:>10}" for role in ROLES))
    for result in results:
        spent = "".join(f"{result.cpu(role):10.3f}" for role in ROLES)
        print(f"{result.same_host:13} {result.path:8} {result.concurrent:2} at once {spent}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", default=",".join(PATHS), help="read paths, with commas")
    parser.add_argument(
        "--same-host",
        default="sockets,shared-memory",
        help="how KV moves between processes of one host (the setting same_host), with commas",
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--row-bytes", type=int, default=2048, help="per token and layer")
    parser.add_argument("--cached", type=int, default=4096, help="tokens, in whole blocks")
    parser.add_argument(
        "--ring-layers",
        type=int,
        default=16,
        help="layers of a request on the device at a time; with fewer than all, later ones wait for others to leave",
    )
    parser.add_argument(
        "--layer-ms",
        type=float,
        default=20.0,
        help="emulated compute of each layer, of a request alone",
    )
    parser.add_argument("--concurrent", default="1,4", help="requests at once, with commas")
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument(
        "--pinned", action="store_true", help="the node that reads on a core of its own"
    )
    args = parser.parse_args()
    if args.cached % BLOCK_TOKENS:
        parser.error(f"--cached must be whole blocks of {BLOCK_TOKENS} tokens")
    shape = Shape(args.layers, args.row_bytes, args.cached, args.ring_layers, args.layer_ms)
    counts = [int(text) for text in args.concurrent.split(",")]
    print(
        f"{machine()}; {shape.layers} layers, {shape.cached} cached tokens, "
        f"{shape.cached_bytes / 1e6:.0f} MB a request in blocks of "
        f"{BLOCK_TOKENS * shape.layers * shape.row_bytes / 1e6:.1f} MB",
        flush=True,
    )
    results = []
    for same_host, path, count in product(args.same_host.split(","), args.paths.split(","), counts):
        with cluster(shape.settings(path, count, same_host)) as running:
            contexts = Contexts(running, shape, path, count)
            if args.pinned:
                pin(running, path)
            results.append(measure(contexts, same_host, path, count, args.runs))
    report(results)
    print(f"measured: {machine()}")


if __name__ == "__main__":
    main()
